import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.stream.Collectors;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.PrimitiveRef;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.LogValidator;
import org.apache.kafka.storage.internals.log.RecordValidationException;

/**
 * Reads batches, one a line (now, earliest, latest, compacted, append time, bytes in hex), and says
 * what Kafka's validator says: an error code, the records to blame, the largest timestamp stored;
 * and whether Kafka's consumer could read the batch.
 */
public class Verdicts {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] fields = line.split("\t");
            System.out.println(line + "\t" + verdict(fields) + "\t" + readable(fields));
        }
    }

    static String verdict(String[] fields) {
        long now = Long.parseLong(fields[0]);
        ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(fields[5]));
        CompressionType codec = CompressionType.forId(bytes.get(22) & 7);
        Compression target = Compression.of(codec).build();
        boolean append = fields[4].equals("1");
        LogValidator validator = new LogValidator(
            MemoryRecords.readableRecords(bytes), new TopicPartition("t", 0), fixed(now), codec, target,
            fields[3].equals("1"), (byte) 2,
            append ? TimestampType.LOG_APPEND_TIME : TimestampType.CREATE_TIME,
            now - Long.parseLong(fields[1]), Long.parseLong(fields[2]) - now, 0, AppendOrigin.CLIENT);
        try {
            LogValidator.ValidationResult result = validator.validateMessagesAndAssignOffsets(
                PrimitiveRef.ofLong(0), new Unmeasured(), BufferSupplier.NO_CACHING);
            return "0\t\t" + result.validatedRecords().batches().iterator().next().maxTimestamp();
        } catch (RecordValidationException e) {
            String indexes = e.recordErrors().stream()
                .map(error -> Integer.toString(error.batchIndex)).collect(Collectors.joining(","));
            return Errors.forException(e.invalidException()).code() + "\t" + indexes + "\t";
        } catch (Exception e) {
            return Errors.forException(e).code() + "\t\t";
        }
    }

    /** Whether a consumer can read every record, and finds the offsets without a gap. */
    static int readable(String[] fields) {
        ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(fields[5]));
        long expected = 0;
        try {
            for (Record record : MemoryRecords.readableRecords(bytes).records())
                if (record.offset() != expected++)
                    return 0;
            return 1;
        } catch (Exception e) {
            return 0;
        }
    }

    static Time fixed(long now) {
        return (Time) java.lang.reflect.Proxy.newProxyInstance(
            Verdicts.class.getClassLoader(), new Class<?>[] {Time.class}, (proxy, method, args) ->
                method.getReturnType() == long.class ? now : null);
    }

    static class Unmeasured implements LogValidator.MetricsRecorder {
        public void recordInvalidMagic() {}
        public void recordInvalidOffset() {}
        public void recordInvalidSequence() {}
        public void recordInvalidChecksums() {}
        public void recordNoKeyCompactedTopic() {}
    }
}
