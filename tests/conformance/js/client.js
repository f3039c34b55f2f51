// Does with kafkajs what standard input asks, a list of steps, and prints what each gave.
//
// A step is ["admin", method, argument], ["send", settings of the producer, record batch] or
// ["refused", step], which gives the name of the error. Bytes travel as base64.

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

async function step(kafka, admin, [kind, ...rest]) {
  if (kind === "admin") return (await admin[rest[0]](rest[1])) ?? null;
  if (kind === "send") return (await send(kafka, ...rest)) ?? null;
  try {
    return { passed: await step(kafka, admin, rest[0]) };
  } catch (error) {
    return error.type ?? error.errors?.[0]?.type ?? error.name;
  }
}

async function main() {
  const kafka = new Kafka({
    clientId: "kafkajs",
    brokers: [process.argv[2]],
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
