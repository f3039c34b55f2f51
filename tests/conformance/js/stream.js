// Writes with kafkajs, idempotently, and reads as a member of a group, until standard input ends and
// all that was written is read. Prints a line of JSON for each round that was acknowledged, and for
// each message that was read: ["sent", numbers] and ["read", partition, offset, value].

const { Kafka, logLevel } = require("kafkajs");

const [servers, topic, partitions] = process.argv.slice(2);
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const tell = (...what) => process.stdout.write(JSON.stringify(what) + "\n");

const kafka = new Kafka({
  clientId: "kafkajs",
  brokers: servers.split(","),
  logLevel: logLevel.NOTHING,
  connectionTimeout: 1000,
  requestTimeout: 10000,
  retry: { retries: 60, initialRetryTime: 20, maxRetryTime: 500 },
});

let ended = false;
process.stdin.on("end", () => (ended = true)).resume();

async function write(producer) {
  let number = 0;
  while (!ended) {
    const numbers = Array.from({ length: Number(partitions) }, () => number++);
    // One call for each partition. In a call for several, kafkajs tries again only at brokers that
    // have not answered, so what moves to one that has is never sent, and told as sent.
    const send = (n, partition) =>
      producer.send({ topic, acks: -1, messages: [{ value: String(n), partition }] });
    await Promise.all(numbers.map(send));
    tell("sent", numbers);
    await pause(5); // the nodes have other work
  }
  return number;
}

async function main() {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  const consumer = kafka.consumer({ groupId: topic, heartbeatInterval: 100, maxWaitTimeInMs: 100 });
  const read = new Set();
  await producer.connect();
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  await consumer.run({
    autoCommitInterval: 100,
    eachMessage: async ({ partition, message }) => {
      read.add(message.value.toString());
      tell("read", partition, Number(message.offset), message.value.toString());
    },
  });
  const written = await write(producer);
  while (read.size < written) await pause(20);
  await consumer.disconnect();
  await producer.disconnect();
}

main().then(
  () => process.exit(0),
  (error) => {
    process.stderr.write(`${error.stack}\n`);
    process.exit(1);
  },
);
