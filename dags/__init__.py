"""Airflow: a DAG for every pipeline. Parsing imports Airflow and ``windowmill.windowing.spec``; Spark starts in processes of its own."""

if __name__ != "windowmill.dags":
    raise ImportError("import windowmill.dags; the folder dags/ of a checkout is no package by itself")
