"""Airflow: a DAG for every pipeline. Parsing imports Airflow and ``windowmill.windowing.spec``; Spark and its kin start in processes of their own."""
