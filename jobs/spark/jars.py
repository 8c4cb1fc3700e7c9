"""The jars that Spark lacks, fetched once at set-up and used by every session: Delta's, and those that read ``s3://``.

``python -m windowmill.jobs.spark.jars`` fetches missing and damaged jars of Delta, with ``--s3`` also those to read ``s3://``; with
``--list`` it prints the paths of all that are there, in the form of ``spark-submit --jars``.

The jars that read ``s3://`` are optional: runs read plain files and all tables of their own without them. They are Hadoop's client of S3
and the parts of the AWS SDK that it loads, less what Spark has. Hadoop's own dependency, at the same version, is the SDK's bundle, which
has 686 MB.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as xml

from windowmill.jobs.spark.java import find_java
from windowmill.windowing.errors import MachineError
from windowmill.windowing.settings import IVY_SETTINGS, JARS

#: Of the jars that read ``s3://``: group and version -> artifact -> SHA-256 of its jar.
DIGESTS: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("org.apache.hadoop", "3.5.0"): {
        "hadoop-aws": "66bd9eefb938b1a1657487324b63c13df2d8b17164a1dd24e0ef37b905bc5baa",
    },
    ("org.reactivestreams", "1.0.4"): {
        "reactive-streams": "f75ca597789b3dac58f61857b9ac2e1034a68fa672db35055a8fb4509e325f28",
    },
    ("software.amazon.awssdk", "2.35.4"): {
        "annotations": "6f36bd87155d1dd85d6efbdd29e532e3759a022211feb71affebee1aa34f04b8",
        "apache-client": "6eade21b482724ed0a4613eaa95d20e47e7a81304bd28538ac427fece94a7740",
        "arns": "c63cc29f76a8527e9e10b621703163df541dc5cb315508dc2898518602c75380",
        "auth": "6b601323004833fb4a857ffc95db4795e0e6320eb93e64b1246c655c9ff04994",
        "aws-core": "fdb5fc8f1a48d97fa7d04d3460fb42f6973c7b1bbe1b9d317871ef0162bcb623",
        "aws-query-protocol": "9b4cf9b78977cc9f5b4ceae9c435dedbde6a055a0f8d9e053eaca945715e2a9f",
        "aws-xml-protocol": "4f59176da2522c357b1993e4a890fde529f12f365795ef86269bde4a3984cd0d",
        "checksums": "94464af4374d08ecf33ca06ed4d03e1615529e547726e26b56abacefbeee7948",
        "checksums-spi": "88b5af85ac2d3c862be8856be4e683ab31932e4a5a3c1c45af864d2671ac7cec",
        "crt-core": "2c6aaa17bf9ccbb9d962dded4351e73decb197e3c5519970e0dae17e05d3df62",
        "endpoints-spi": "ef02441bda916959b8341290b49c68cc35538e1ad6f8629b75d8334dc6653e00",
        "http-auth": "3ec933a06e751a05e195eb3589209e23c44e1897263b6fcae34ef4cc63cd4491",
        "http-auth-aws": "c4acb92fdec90bfd9b67bfab8e41b69cd152c03cacc10281a8ab464791856e01",
        "http-auth-aws-eventstream": "709107552f302be3fa9e05969a3779f5c0f07fb809e6fa1fa571a6f0c61326dd",
        "http-auth-spi": "4495463406bb98eb136f2c3f3604ed5f08ec9974ebc3f34f2121b20679f61d5c",
        "http-client-spi": "728be89b2a07b595edb0adee3a2cbbbdd4cb1f4caddde0d08c3979fe2620dedb",
        "identity-spi": "188d73db7d4e2361654bc3c5a1b3eaeb445d0500fb012cc46c5d67975adf97bf",
        "json-utils": "80d67a6bb3e7eb49c7d4b6e4ba4c1463ed7da0192b795158328602dc131c5ecc",
        "metrics-spi": "c2a4ee90a21081317e2e6eba0c414d05d3d518aed2f86b1c1710a7367b450487",
        "netty-nio-client": "b82f8b33e5c85273a47da45ede884d7ccb31c9c2f69e6910a76c5c48fa1275dc",
        "profiles": "0f4ef7ca72ccd80dd49ebeaf7f3ce60a7d7a00da59a91aeeae6e91052bbacbd8",
        "protocol-core": "f2532eca6ba2142fe4821d5decb03c83a3e15dc8bfae2240e7f2efa75f9868b5",
        "regions": "77eae87b34ce96ecdf916a9bc06684dbeafcb6d38ef0513285fa5d5d6d41f5ca",
        "retries": "f99fb2f8c66d7e859955b3542d3af8f9de8f23a21d5e3250f0f2c5f18487e469",
        "retries-spi": "668638751d059c527ddd41ffa4dcebe36a7c14860ed56776df09b861c14dc7dd",
        "s3": "f23532c5223be9b0bfec0d72837ed09ed34dbdf8022818ba145b20076a78b4bc",
        "s3-transfer-manager": "0eec78870b3d0abc509a847072cf963cb2ae6e360dc6161a9449b3398c470476",
        "sdk-core": "fa559a4ce598852f3519c8f3b36250f583b0858a7611eedc4a81997778c617f4",
        "sts": "8d0f7816d3f96e3f00249f5d054d926e939a104bcf9ef57676ee0b16c59684d2",
        "third-party-jackson-core": "32f4252c6c2df8f3a4aff885e6dc77024ad6b4cb48455d07b461ec30c41643ea",
        "utils": "642aeef536a071668f0b772f05f9d21573abf6955e7b6fb5fdb893760cca10e8",
        "utils-lite": "e004806def5e22ec98edc48a133ff3317166255e1ba29d93d129e9fdfa64a7be",
    },
    ("software.amazon.eventstream", "1.0.1"): {
        "eventstream": "0c37d8e696117f02c302191b8110b0d0eb20fa412fce34c3a269ec73c16ce822",
    },
    ("software.amazon.s3.analyticsaccelerator", "1.3.1"): {
        "analyticsaccelerator-s3": "4959a9747cbb479c73c3ffbcd479bee5b014f8b2880994585a8693fb9d24675e",
    },
}


DELTA_VERSION = "4.4.0"
#: How long Ivy may take to fetch jars.
FETCH_SECONDS = 300


class Jar(NamedTuple):
    """A published jar, and its SHA-256."""

    group: str
    artifact: str
    version: str
    digest: str

    @property
    def name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


# Delta's published dependencies also name Hadoop, Parquet, Jackson and log4j in versions older than those inside Spark. Spark's own
# classes precede them on every class path, so only the jars that Spark lacks are fetched, without their dependencies.
_DELTA_DIGESTS = {
    "delta-spark_4.2_2.13": "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
    "delta-storage": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    "delta-kernel-api": "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
    "delta-kernel-defaults": "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
    "delta-kernel-unitycatalog": "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa",
}
DELTA_JARS = tuple(Jar("io.delta", artifact, DELTA_VERSION, digest) for artifact, digest in _DELTA_DIGESTS.items())
#: The jars that read ``s3://``.
S3_JARS = tuple(Jar(group, artifact, version, digest) for (group, version), jars in DIGESTS.items() for artifact, digest in jars.items())


def jars_folder() -> Path:
    """``WINDOWMILL_JARS``, else ``share/windowmill/jars`` of this Python environment, or where that cannot be made the user's cache."""
    if setting := JARS.given():
        return Path(setting).absolute()
    shared = Path(sys.prefix) / "share" / "windowmill" / "jars"
    nearest = next(folder for folder in (shared, *shared.parents) if folder.exists())
    if nearest == shared or os.access(nearest, os.W_OK):
        return shared
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "windowmill" / "jars"


def class_archive() -> Path:
    """Class archive that sessions start from, stored with the jars; the JVM ignores one recorded with another Java or other jars."""
    return jars_folder() / "spark-classes.jsa"


def jar_paths() -> list[Path]:
    """Paths of all jars for a session to load; their contents are not verified."""
    folder = jars_folder()
    paths = [folder / jar.name for jar in DELTA_JARS]
    if not all(path.is_file() for path in paths):
        raise MachineError(f"Delta jars are not in {folder}; run `make setup` (or, without the checkout, `windowmill setup`)")
    return paths + ([folder / jar.name for jar in S3_JARS] if has_s3_jars() else [])


def has_s3_jars() -> bool:
    folder = jars_folder()
    return all((folder / jar.name).is_file() for jar in S3_JARS)


def damaged_jars(folder: Path, jars: Sequence[Jar] = DELTA_JARS) -> list[Jar]:
    """Those of ``jars`` that are missing in ``folder`` or not what was published (reads 13 MB)."""
    return [jar for jar in jars if _digest(folder / jar.name) != jar.digest]


def fetch_jars(folder: Path, jars: Sequence[Jar] = DELTA_JARS) -> list[Jar]:
    """Fetch the missing and damaged ones of ``jars``, and return them; makes no request if all are intact."""
    wanted = damaged_jars(folder, jars)
    if not wanted:
        return []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
            _resolve(wanted, Path(scratch))
            wrong = damaged_jars(Path(scratch), wanted)
            if wrong:
                names = ", ".join(sorted(jar.artifact for jar in wrong))
                raise MachineError(f"fetched jars are not the published ones: {names}; check the Maven mirror in use")
            for jar in wanted:
                (Path(scratch) / jar.name).replace(folder / jar.name)
    except OSError as err:
        raise MachineError(f"jars cannot be written to {folder} ({err.strerror}); set WINDOWMILL_JARS to a writable folder") from err
    return wanted


def pyspark_folder() -> Path:
    """Folder of the package PySpark, which is not imported."""
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def _resolve(wanted: Sequence[Jar], into: Path) -> None:
    """Fetch ``wanted`` by Spark's Ivy; ``WINDOWMILL_IVY_SETTINGS`` may name an Ivy settings file, e.g. for a mirror."""
    ivy = sorted((pyspark_folder() / "jars").glob("ivy-*.jar"))
    if not ivy:
        raise MachineError(f"pyspark in {pyspark_folder()} has no jars; install it again: `make setup`")
    module = xml.Element("ivy-module", version="2.0")
    xml.SubElement(module, "info", organisation="windowmill", module="jars")
    dependencies = xml.SubElement(module, "dependencies")
    for jar in wanted:
        coordinates = {"org": jar.group, "name": jar.artifact, "rev": jar.version}
        xml.SubElement(dependencies, "dependency", coordinates, conf="default->master", transitive="false")
    xml.ElementTree(module).write(into / "ivy.xml")
    command = [f"{find_java().home}/bin/java", "-cp", str(ivy[0]), "org.apache.ivy.Main", "-error", "-ivy", f"{into}/ivy.xml"]
    command += ["-types", "jar", "bundle", "-cache", f"{into}/cache", "-retrieve", f"{into}/[artifact]-[revision].[ext]"]
    if given := IVY_SETTINGS.given():
        command += ["-settings", given]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=FETCH_SECONDS)
        output = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    except subprocess.TimeoutExpired:
        output = [f"not found within {FETCH_SECONDS} s"]
    if not all((into / jar.name).is_file() for jar in wanted):
        reasons = [line for line in output if "not found" in line or "error" in line] or output or ["no reason given"]
        raise MachineError(
            f"jars {wanted[0].group} {wanted[0].version} could not be fetched ({reasons[0]}); "
            f"check the network, or name your Maven mirror in an Ivy settings file by WINDOWMILL_IVY_SETTINGS"
        )


def _digest(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def main() -> int:
    try:
        if sys.argv[1:] == ["--list"]:
            print(",".join(map(str, jar_paths())))
            return 0
        for what, jars in {f"Delta {DELTA_VERSION}": DELTA_JARS, "S3": S3_JARS if "--s3" in sys.argv[1:] else ()}.items():
            fetched = fetch_jars(jars_folder(), jars)
            if jars:
                print(f"jars of {what} are in {jars_folder()} ({len(fetched)} fetched, {len(jars) - len(fetched)} were there)")
    except MachineError as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
