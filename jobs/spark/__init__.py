"""Spark: session, jars, Java, shipping of users' modules, staged rows, and error messages."""
