"""Builds an Airflow DAG for every pipeline. Parsing imports Airflow and ``windowmill.windowing.spec``; Spark runs in other processes."""

if __name__ != "windowmill.dags":
    raise ImportError("import windowmill.dags; the folder dags/ of a checkout is no package by itself")
