"""Tables that a spec names by a catalog, in a Hive metastore that runs."""
