"""Types of columns as texts of SQL.

A type that a client of Spark Connect sends as a value makes texts ``STRING COLLATE UTF8_BINARY``. It equals ``STRING``, but Delta writes it
into the log of a new table, which then only Spark can read. The name of a type in SQL does not (Spark 4.2).
"""

from __future__ import annotations

from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from windowmill.checkpoints.quoting import backquoted


def sql_type(kind: DataType) -> str:
    """The name of a type in SQL, nullability of fields included.

    Examples
    --------
    >>> from pyspark.sql.types import LongType, StructField
    >>> sql_type(StructType([StructField("a.b", StringType()), StructField("n", ArrayType(LongType()), False)]))
    'STRUCT<`a.b`: string, `n`: ARRAY<bigint> NOT NULL>'
    """
    match kind:
        case StructType():
            fields = (f"{backquoted(field.name)}: {sql_type(field.dataType)}{'' if field.nullable else ' NOT NULL'}" for field in kind)
            return f"STRUCT<{', '.join(fields)}>"
        case ArrayType():
            return f"ARRAY<{sql_type(kind.elementType)}>"
        case MapType():
            return f"MAP<{sql_type(kind.keyType)}, {sql_type(kind.valueType)}>"
    return kind.simpleString()


def holds_text(kind: DataType) -> bool:
    """Whether a value of the type holds a text."""
    match kind:
        case StructType():
            return any(holds_text(field.dataType) for field in kind)
        case ArrayType():
            return holds_text(kind.elementType)
        case MapType():
            return holds_text(kind.keyType) or holds_text(kind.valueType)
    return isinstance(kind, StringType)
