"""Spark: its session and jars, Java, users' modules on executors, rows staged by it, and errors of workers."""
