// Does with kafkajs what standard input asks, a list of steps, and prints what each gave.
//
// A step is ["admin", method, argument], ["send", settings of the producer, record batch],
// ["consume", settings of the consumer, what to read], ["transact", transactional id, transactions],
// ["twins", transactional id, topic] or ["refused", step], which gives the name of the error. Bytes
// travel as base64.

const { Kafka, CompressionTypes, logLevel } = require("kafkajs");

const bytes = (text) => (text === null ? null : Buffer.from(text, "base64"));

/** kafkajs takes headers as an object, and a repeated name as a list. */
function headers(pairs) {
  const found = {};
  for (const [name, value] of pairs) (found[name] ??= []).push(bytes(value));
  return found;
}

async function send(kafka, settings, { topic, acks, codec, messages }) {
  const producer = kafka.producer({ allowAutoTopicCreation: false, ...settings });
  await producer.connect();
  try {
    return await producer.send({
      topic,
      acks,
      compression: { none: CompressionTypes.None, gzip: CompressionTypes.GZIP }[codec],
      messages: messages.map((message) => ({
        ...message,
        key: bytes(message.key),
        value: bytes(message.value),
        headers: headers(message.headers),
      })),
    });
  } finally {
    await producer.disconnect();
  }
}

/** Reads so many messages as members of a group that share the topic, and commits by hand. */
async function consume(kafka, settings, { topic, partitions, members, count, commit }) {
  const read = [];
  const held = {};
  const consumers = [];
  let finish;
  const finished = new Promise((resolve) => (finish = resolve));
  const check = () => {
    const all = Object.values(held).flat();
    const shared = all.length === partitions && new Set(all).size === partitions;
    if (read.length >= count && shared && Object.keys(held).length === members) finish();
  };
  for (let number = 0; number < members; number++) {
    const consumer = kafka.consumer({ heartbeatInterval: 100, maxWaitTimeInMs: 100, ...settings });
    consumers.push(consumer);
    consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
      held[number] = payload.memberAssignment[topic] ?? [];
      check();
    });
    await consumer.connect();
    await consumer.subscribe({ topics: [topic], fromBeginning: true });
    await consumer.run({
      autoCommit: false,
      eachMessage: async ({ partition, message }) => {
        read.push([partition, Number(message.offset), message.value.toString()]);
        check();
      },
    });
  }
  await finished;
  const told = { read, held: Object.values(held) };
  if (commit) await consumers[0].commitOffsets(commit.map((one) => ({ topic, ...one })));
  for (const consumer of consumers) await consumer.disconnect();
  return told;
}

/** Each transaction sends values to a topic, and offsets of a group, then ends as it says. */
async function transact(kafka, transactionalId, transactions) {
  const producer = kafka.producer({ transactionalId, idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  try {
    for (const { topic, values, offsets, ending } of transactions) {
      const transaction = await producer.transaction();
      await transaction.send({ topic, messages: values.map((value) => ({ value, partition: 0 })) });
      if (offsets) await transaction.sendOffsets(offsets);
      await transaction[ending]();
    }
  } finally {
    await producer.disconnect();
  }
}

/** The second producer of an id takes over; the first one's commit fails with this. */
async function twins(kafka, transactionalId, topic) {
  const settings = { transactionalId, idempotent: true, maxInFlightRequests: 1 };
  const [first, second] = [kafka.producer(settings), kafka.producer(settings)];
  await first.connect();
  const transaction = await first.transaction();
  await transaction.send({ topic, messages: [{ value: "never", partition: 0 }] });
  await second.connect();
  await (await second.transaction()).abort();
  try {
    await transaction.commit();
    return null;
  } catch (error) {
    return error.type ?? error.name;
  } finally {
    await first.disconnect();
    await second.disconnect();
  }
}

async function step(kafka, admin, [kind, ...rest]) {
  if (kind === "admin") return (await admin[rest[0]](rest[1])) ?? null;
  if (kind === "send") return (await send(kafka, ...rest)) ?? null;
  if (kind === "consume") return await consume(kafka, ...rest);
  if (kind === "transact") return (await transact(kafka, ...rest)) ?? null;
  if (kind === "twins") return await twins(kafka, ...rest);
  try {
    return { passed: await step(kafka, admin, rest[0]) };
  } catch (error) {
    return error.type ?? error.errors?.[0]?.type ?? error.name;
  }
}

async function main() {
  const kafka = new Kafka({
    clientId: "kafkajs",
    brokers: process.argv[2].split(","),
    logLevel: logLevel.NOTHING,
    retry: { retries: 8, initialRetryTime: 20 },
  });
  let asked = "";
  for await (const part of process.stdin) asked += part;
  const admin = kafka.admin();
  await admin.connect();
  const told = [];
  for (const one of JSON.parse(asked)) told.push(await step(kafka, admin, one));
  await admin.disconnect();
  process.stdout.write(JSON.stringify(told));
}

main();
