"""Spark: its session and jars, Java, users' modules on executors, and errors of workers."""
