#!/bin/sh
# Builds the golden corpus anew: Kafka's released jars, found through Maven, encode seeded values
# for every message and version. Needs a JDK (17 or newer) and Maven; the tests need neither.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT

mvn -q -B -f "$here/java/pom.xml" \
    org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath \
    -Dmdep.outputFile="$build/classpath"
classpath=$(cat "$build/classpath")
javac -cp "$classpath" -d "$build" "$here/java/Golden.java"
java -cp "$build:$classpath" Golden >"$build/corpus.jsonl.gz" 2>"$build/log" || {
    cat "$build/log" >&2
    exit 1
}
mv "$build/corpus.jsonl.gz" "$here/corpus.jsonl.gz"
echo "$here/corpus.jsonl.gz: $(gzip -dc "$here/corpus.jsonl.gz" | grep -c '^{"message"') cases"
