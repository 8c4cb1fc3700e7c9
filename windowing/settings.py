"""Variables of the environment that windowmill reads, one :class:`Setting` each; docs/reference/settings.md lists them."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Setting:
    """A variable of a deployment. What one pipeline needs is a field of its spec."""

    name: str
    #: Who reads it: every command that computes, the DAGs that ship, or what fetches the jars.
    read_by: Literal["runs", "DAGs", "set-up"]
    meaning: str
    #: What holds without it.
    default: str
    example: str

    def given(self) -> str | None:
        """Its value; none if it is not set, or empty."""
        return os.environ.get(self.name) or None


COMPUTE = Setting("WINDOWMILL_COMPUTE", "runs", "Who computes batches: `spark`, `auto` or `local`.", "`compute` of each spec", "auto")
MASTER = Setting("WINDOWMILL_MASTER", "runs", "Spark's master, where Spark starts in the run's process.", "`local[*]`", "spark://host:7077")
DRIVER_MEMORY = Setting("WINDOWMILL_DRIVER_MEMORY", "runs", "Heap of Spark's driver, also of `windowmill serve`.", "`4g`", "8g")
PLUGINS = Setting(
    "WINDOWMILL_PLUGINS", "runs", "Modules of plugins, separated by commas.", "those that installed packages declare", "shop_windows"
)
PRICE_PER_HOUR = Setting("WINDOWMILL_PRICE_PER_HOUR", "runs", "Price of an hour of computing, for `cost`.", "no price", "0.20")
JARS = Setting(
    "WINDOWMILL_JARS",
    "set-up",
    "Folder of Delta's jars and of the JVM's class archive.",
    "`share/windowmill/jars` of the Python environment, or of the user's cache where that cannot be written",
    "/opt/windowmill/jars",
)
IVY_SETTINGS = Setting(
    "WINDOWMILL_IVY_SETTINGS", "set-up", "File of Ivy settings, such as those of a Maven mirror.", "Maven Central", "/etc/ivysettings.xml"
)
PIPELINES = Setting(
    "WINDOWMILL_PIPELINES", "DAGs", "Folders of specs, separated by colons.", "`pipelines/` next to `dags_folder`", "/srv/pipelines"
)
SPARK_CONN_ID = Setting(
    "WINDOWMILL_SPARK_CONN_ID", "DAGs", "Airflow connection of a Spark master.", "Spark runs in the task", "spark_cluster"
)
SPARK_CONNECT_CONN_ID = Setting(
    "WINDOWMILL_SPARK_CONNECT_CONN_ID", "DAGs", "Airflow connection of a Spark Connect server.", "Spark runs in the task", "warm"
)
STORAGE_CONN_ID = Setting(
    "WINDOWMILL_STORAGE_CONN_ID", "DAGs", "Airflow connection of object storage.", "the worker's environment or role", "aws_lake"
)
NEW_VERSIONS = Setting(
    "WINDOWMILL_NEW_VERSIONS",
    "DAGs",
    "`wait`: runs of pipelines with a cron schedule wait until their source has new rows.",
    "runs start by the clock",
    "wait",
)
ASK_WHEN_HELD = Setting(
    "WINDOWMILL_ASK_WHEN_HELD",
    "DAGs",
    "How long a run asks in the user interface about a held batch.",
    "nobody is asked: it fails",
    "12 hours",
)
APPROVE_CHANGES = Setting(
    "WINDOWMILL_APPROVE_CHANGES",
    "DAGs",
    "How long a run asks in the user interface about a changed spec.",
    "nobody is asked: it fails",
    "2 days",
)
VERIFY = Setting("WINDOWMILL_VERIFY", "DAGs", "Number of published rows that each nightly maintenance recomputes.", "none", "100")

SETTINGS = (
    *(COMPUTE, MASTER, DRIVER_MEMORY, PLUGINS, PRICE_PER_HOUR, JARS, IVY_SETTINGS),
    *(PIPELINES, SPARK_CONN_ID, SPARK_CONNECT_CONN_ID, STORAGE_CONN_ID, NEW_VERSIONS, ASK_WHEN_HELD, APPROVE_CHANGES, VERIFY),
)

#: Variables of others that windowmill follows too -> what they do.
OF_OTHERS: Mapping[str, str] = {
    "SPARK_REMOTE": "PySpark's: address of the Spark Connect server that runs use.",
    "SPARK_CONNECT_AUTHENTICATE_TOKEN": "Spark's: the token of `windowmill serve`; without it each start makes another one.",
    "PYSPARK_PYTHON": "PySpark's: the Python of the workers of a cluster.",
    "JAVA_HOME": "Java 17; without it, `java` on the `PATH`, then the places where packages of Linux install it.",
    "XDG_CACHE_HOME": "The user's cache; without it `~/.cache`.",
    "AWS_…, AZURE_…, GOOGLE_…": "Credentials and addresses of object storage, as delta-rs reads them.",
}


def misspelt() -> dict[str, str]:
    """Variables of the environment that look like a setting and are none -> the setting."""
    known = [setting.name for setting in SETTINGS]
    near = {
        name: difflib.get_close_matches(name, known, n=1, cutoff=0.9)
        for name in os.environ
        if name.startswith("WINDOWMILL") and name not in known
    }
    return {name: found[0] for name, found in sorted(near.items()) if found}
