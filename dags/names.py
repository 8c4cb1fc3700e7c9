"""Names that several DAGs share."""

#: Suffix of the id of a pipeline's maintenance DAG.
MAINTENANCE = "__maintenance"
