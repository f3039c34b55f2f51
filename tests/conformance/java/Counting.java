import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;

/**
 * Counts words, exactly once: from a topic of lines, through a repartition topic and a store whose
 * changelog is a compacted topic, into a topic of counts.
 *
 * <p>Arguments: bootstrap servers, application id, topic of lines, topic of counts, state folder. It
 * says when it runs, restored how much, and ends with its standard input.
 */
public final class Counting {
    public static void main(String[] args) throws Exception {
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(args[2])
                .flatMapValues(line -> java.util.Arrays.asList(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.as("by-word"))
                .count(Materialized.as("counts"))
                .toStream()
                .mapValues(count -> Long.toString(count))
                .to(args[3]);

        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, args[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, args[4]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 50);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, -1); // the broker knows
        settings.put(
                StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class.getName());
        settings.put(
                StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class.getName());
        settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        settings.put(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG, 3000);
        settings.put(ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG, 500);
        settings.put(StreamsConfig.producerPrefix("transaction.timeout.ms"), 3000);

        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        CountDownLatch failed = new CountDownLatch(1);
        streams.setStateListener(
                (now, before) -> {
                    System.out.println(now);
                    if (now == KafkaStreams.State.ERROR) failed.countDown();
                });
        streams.setGlobalStateRestoreListener(new Told());
        streams.start();
        while (System.in.read() >= 0) continue;
        streams.close(Duration.ofSeconds(30));
        System.exit(failed.getCount() == 0 ? 1 : 0);
    }

    /** Says how many records a store was rebuilt from. */
    private static final class Told
            implements org.apache.kafka.streams.processor.StateRestoreListener {
        public void onRestoreStart(
                org.apache.kafka.common.TopicPartition part, String store, long start, long end) {}

        public void onBatchRestored(
                org.apache.kafka.common.TopicPartition part, String store, long end, long count) {}

        public void onRestoreEnd(
                org.apache.kafka.common.TopicPartition part, String store, long total) {
            System.out.println("RESTORED " + part + " " + total);
        }
    }
}
