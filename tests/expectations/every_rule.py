"""One rule of each type of the installed Great Expectations, over the rows of the fixture ``batch`` of batch 0, with a column ``json``."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

DELAY, ORIGIN = {"column": "delay"}, {"column": "origin"}
COLUMNS = ["origin", "window", "window_start", "window_end", "trigger", "revision", "flights", "delay", "batch", "json"]
JSON = pa.array([f'{{"n": {row}}}' for row in range(6)])
#: Arguments with which the rows keep the rule.
KEPT: dict[str, dict[str, Any]] = {
    **{
        f"expect_column_distinct_values_to_{what}": ORIGIN | {"value_set": ["EWR", "JFK"]}
        for what in ("be_in_set", "contain_set", "equal_set")
    },
    "expect_column_kl_divergence_to_be_less_than": ORIGIN
    | {"partition_object": {"values": ["EWR", "JFK"], "weights": [0.5, 0.5]}, "threshold": 0.1},
    **{
        f"expect_column_{what}_to_be_between": DELAY | {"min_value": 0, "max_value": 15}
        for what in ("max", "mean", "median", "min", "stdev", "sum")
    },
    "expect_column_most_common_value_to_be_in_set": ORIGIN | {"value_set": ["EWR"], "ties_okay": True},
    "expect_column_pair_values_a_to_be_greater_than_b": {"column_A": "window_end", "column_B": "window_start"},
    "expect_column_pair_values_to_be_equal": {"column_A": "revision", "column_B": "revision"},
    "expect_column_pair_values_to_be_in_set": {
        "column_A": "origin",
        "column_B": "window",
        "value_pairs_set": [["EWR", "hourly"], ["JFK", "hourly"]],
    },
    "expect_column_proportion_of_non_null_values_to_be_between": DELAY | {"min_value": 0.5},
    "expect_column_proportion_of_unique_values_to_be_between": DELAY | {"min_value": 0.5},
    "expect_column_quantile_values_to_be_between": DELAY | {"quantile_ranges": {"quantiles": [0.5], "value_ranges": [[0, 5]]}},
    "expect_column_to_exist": DELAY | {"column_index": 7},
    "expect_column_type_to_be": DELAY | {"type_": "DoubleType"},
    "expect_column_unique_value_count_to_be_between": DELAY | {"min_value": 5},
    "expect_column_value_lengths_to_be_between": ORIGIN | {"min_value": 3},
    "expect_column_value_lengths_to_equal": ORIGIN | {"value": 3},
    "expect_column_value_z_scores_to_be_less_than": DELAY | {"threshold": 3, "double_sided": True},
    "expect_column_values_to_be_between": DELAY | {"min_value": 0, "max_value": 5, "strict_min": False},
    "expect_column_values_to_be_decreasing": {"column": "batch"},
    "expect_column_values_to_be_in_set": ORIGIN | {"value_set": ["EWR", "JFK"]},
    "expect_column_values_to_be_in_type_list": DELAY | {"type_list": ["DoubleType", "FloatType"]},
    "expect_column_values_to_be_increasing": DELAY,
    "expect_column_values_to_be_json_parseable": {"column": "json"},
    "expect_column_values_to_be_null": {"column": "trigger"},
    "expect_column_values_to_be_of_type": DELAY | {"type_": "DoubleType"},
    "expect_column_values_to_be_unique": DELAY,
    "expect_column_values_to_match_json_schema": {"column": "json", "json_schema": {"type": "object", "required": ["n"]}},
    "expect_column_values_to_match_regex": ORIGIN | {"regex": "^[A-Z]{3}$"},
    "expect_column_values_to_match_regex_list": ORIGIN | {"regex_list": ["E", "J"], "match_on": "any"},
    "expect_column_values_to_match_strftime_format": {"column": "json", "strftime_format": '{"n": %S}'},
    "expect_column_values_to_not_be_in_set": ORIGIN | {"value_set": ["LGA"]},
    "expect_column_values_to_not_be_null": DELAY,
    "expect_column_values_to_not_be_outliers": DELAY | {"method": "iqr", "multiplier": 3},
    "expect_column_values_to_not_match_regex": ORIGIN | {"regex": "L"},
    "expect_column_values_to_not_match_regex_list": ORIGIN | {"regex_list": ["L"]},
    "expect_compound_columns_to_be_unique": {"column_list": ["origin", "window_end"]},
    "expect_multicolumn_sum_to_equal": {"column_list": ["revision", "batch"], "sum_total": 0},
    "expect_multicolumn_values_to_be_equal": {"column_list": ["revision", "batch"]},
    "expect_select_column_values_to_be_unique_within_record": {"column_list": ["flights", "revision"]},
    "expect_table_column_count_to_be_between": {"min_value": 3, "max_value": 10},
    "expect_table_column_count_to_equal": {"value": 10},
    "expect_table_columns_to_match_ordered_list": {"column_list": COLUMNS},
    "expect_table_columns_to_match_set": {"column_set": COLUMNS[::-1], "exact_match": True},
    "expect_table_row_count_to_be_between": {"min_value": 1, "max_value": 10},
    "expect_table_row_count_to_equal": {"value": 6},
    "unexpected_rows_expectation": {"unexpected_rows_query": "SELECT * FROM {batch} WHERE delay > 100"},
}
#: Arguments of the types that no batch can be judged by.
REFUSED: dict[str, dict[str, Any]] = {
    "expect_column_values_to_be_dateutil_parseable": ORIGIN,
    **{f"expect_column_values_to_{what}match_like_pattern": ORIGIN | {"like_pattern": "E%"} for what in ("", "not_")},
    **{f"expect_column_values_to_{what}match_like_pattern_list": ORIGIN | {"like_pattern_list": ["E%"]} for what in ("", "not_")},
    "expect_query_results_to_match_comparison": {"base_query": "a", "comparison_query": "b", "comparison_data_source_name": "c"},
    "expect_table_row_count_to_equal_other_table": {"other_table_name": "t"},
}
