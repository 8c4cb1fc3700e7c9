"""Plain files that tasks of the Spark scheduler read by Arrow, without the JVM."""
