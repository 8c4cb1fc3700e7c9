"""Names that several DAGs share."""

#: What the id of a pipeline's maintenance DAG ends with.
MAINTENANCE = "__maintenance"
