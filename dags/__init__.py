"""Airflow: a DAG for every pipeline. Parsing imports Airflow and ``windowmill.windowing.spec``; Spark starts in processes of its own."""

if __name__ != "windowmill.dags":
    raise ImportError("the package is windowmill.dags; at the top of a checkout stands its folder")
