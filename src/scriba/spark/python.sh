#!/bin/sh
# Starts a Python worker of Spark on this machine with the modules of the installed pyspark. Spark
# puts an archive of the same modules in front of the path, and what is in an archive is compiled
# again by each process that starts: most of the time until a worker answers.
rest=$PYTHONPATH: kept=
while [ -n "$rest" ]; do
    place=${rest%%:*} rest=${rest#*:}
    case $place in */pyspark.zip | */py4j-*-src.zip | '') ;; *) kept=${kept:+$kept:}$place ;; esac
done
PYTHONPATH=$kept
[ -n "$kept" ] || unset PYTHONPATH
exec "${SCRIBA_SPARK_PYTHON:?names the Python to start}" "$@"
