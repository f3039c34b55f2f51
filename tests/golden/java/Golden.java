import com.fasterxml.jackson.core.json.JsonReadFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.json.JsonMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.NullNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.fasterxml.jackson.databind.node.ShortNode;
import java.io.File;
import java.io.OutputStreamWriter;
import java.io.PrintWriter;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.zip.GZIPOutputStream;
import java.util.zip.ZipEntry;
import java.util.zip.ZipFile;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.metadata.MetadataRecordSerde;
import org.apache.kafka.server.common.ApiMessageAndVersion;

/**
 * Writes the golden corpus: JSON lines, gzipped, on standard output.
 *
 * Each message definition found in the jars on the class path gives one line of facts (names,
 * types, versions, nothing that is prose) and, for each valid version, a few cases: seeded values
 * and the bytes into which Kafka's own code turns them. Error codes and API versions follow.
 */
public final class Golden {
    private static final JsonMapper JSON =
        JsonMapper.builder().enable(JsonReadFeature.ALLOW_JAVA_COMMENTS).build();
    private static final List<String> FACTS = List.of(
        "name", "type", "apiKey", "listeners", "validVersions", "flexibleVersions",
        "latestVersionUnstable", "commonStructs", "fields", "versions", "nullableVersions",
        "taggedVersions", "tag", "default", "ignorable");
    private static final String[] TEXTS = {
        "", "a", "topic-1", "gr\u00fc\u00df dich \u2603 \ud83d\ude00", "x".repeat(127), "y".repeat(300)};

    private final PrintWriter out;
    private final Map<String, JsonNode> definitions = new TreeMap<>();
    private final Map<String, String> classes = new HashMap<>();

    private Golden(PrintWriter out) {
        this.out = out;
    }

    public static void main(String[] arguments) throws Exception {
        try (PrintWriter out = new PrintWriter(new OutputStreamWriter(
                new GZIPOutputStream(System.out), StandardCharsets.UTF_8))) {
            Golden golden = new Golden(out);
            golden.scan();
            golden.messages();
            golden.tables();
        }
    }

    private void scan() throws Exception {
        for (String path : System.getProperty("java.class.path").split(File.pathSeparator)) {
            if (!path.endsWith(".jar")) {
                continue;
            }
            try (ZipFile jar = new ZipFile(path)) {
                for (ZipEntry entry : (Iterable<ZipEntry>) jar.stream().map(e -> (ZipEntry) e)::iterator) {
                    String name = entry.getName();
                    if (name.matches("(common/)?(message|metadata)/\\w+\\.json")) {
                        JsonNode definition = JSON.readTree(jar.getInputStream(entry));
                        definitions.put(definition.get("name").asText(), definition);
                    } else if (name.matches("org/apache/kafka/.*/\\w+JsonConverter\\.class")) {
                        String full = name.substring(0, name.length() - 6).replace('/', '.');
                        classes.put(full.substring(full.lastIndexOf('.') + 1), full);
                    }
                }
            }
        }
    }

    private void messages() throws Exception {
        for (JsonNode definition : definitions.values()) {
            ObjectNode line = JSON.createObjectNode();
            line.set("facts", facts(definition));
            out.println(JSON.writeValueAsString(line));
            String versions = definition.get("validVersions").asText();
            if (!versions.equals("none")) {
                int[] range = range(versions);
                for (int version = range[0]; version <= range[1]; version++) {
                    cases(definition, (short) version);
                }
            }
        }
    }

    /** The definition without its prose. */
    private static JsonNode facts(JsonNode node) {
        if (node.isArray()) {
            ArrayNode array = JSON.createArrayNode();
            node.forEach(element -> array.add(facts(element)));
            return array;
        }
        if (!node.isObject()) {
            return node;
        }
        ObjectNode object = JSON.createObjectNode();
        for (String name : FACTS) {
            if (node.has(name)) {
                object.set(name, facts(node.get(name)));
            }
        }
        return object;
    }

    private void cases(JsonNode definition, short version) throws Exception {
        String name = definition.get("name").asText();
        String type = definition.get("type").asText();
        boolean data = List.of("request", "response", "header").contains(type);
        String converter = classes.get(name + (data ? "Data" : "") + "JsonConverter");
        Class<?> converterClass = Class.forName(converter);
        Method read = converterClass.getMethod("read", JsonNode.class, short.class);
        Class<?> messageClass = read.getReturnType();
        Method write = converterClass.getMethod("write", messageClass, short.class);
        List<String> seen = new ArrayList<>();
        for (Style style : Style.values()) {
            Message message;
            JsonNode values;
            if (style == Style.DEFAULTS) {
                message = (Message) messageClass.getConstructor().newInstance();
                values = (JsonNode) write.invoke(null, message, version);
            } else {
                Random random = new Random(31L * (31L * name.hashCode() + version) + style.ordinal());
                Filler filler = new Filler(definition, version, style, random);
                values = filler.struct(definition.get("fields"));
                message = (Message) read.invoke(null, values, version);
            }
            ByteBufferAccessor bytes = MessageUtil.toByteBufferAccessor(message, version);
            String hex = hex(bytes.buffer());
            if (seen.contains(hex)) {
                continue;
            }
            seen.add(hex);
            ObjectNode line = JSON.createObjectNode();
            line.put("message", name).put("version", version).put("bytes", hex);
            line.set("values", values);
            String framed = framed(type, name, message, version);
            if (framed != null) {
                line.put("framed", framed);
            }
            if (name.equals("QuorumStateData")) {
                ObjectNode file = (ObjectNode) write.invoke(null, message, version);
                file.set("data_version", new ShortNode(version));
                line.put("file", file.toString());
            }
            out.println(JSON.writeValueAsString(line));
        }
    }

    /** The bytes with the prefix they have inside a record, for messages that are kept in one. */
    private static String framed(String type, String name, Message message, short version) {
        switch (type) {
            case "metadata":
                if (name.startsWith("Remote")) {
                    return null;
                }
                ApiMessageAndVersion record = new ApiMessageAndVersion((ApiMessage) message, version);
                MetadataRecordSerde serde = new MetadataRecordSerde();
                ObjectSerializationCache cache = new ObjectSerializationCache();
                ByteBuffer buffer = ByteBuffer.allocate(serde.recordSize(record, cache));
                serde.write(record, cache, new ByteBufferAccessor(buffer));
                buffer.flip();
                return hex(buffer);
            case "coordinator-key":
                return hex(MessageUtil.toCoordinatorTypePrefixedByteBuffer((ApiMessage) message));
            case "coordinator-value":
                return hex(MessageUtil.toVersionPrefixedByteBuffer(version, message));
            default:
                return null;
        }
    }

    private void tables() throws Exception {
        for (Errors error : Errors.values()) {
            ObjectNode line = JSON.createObjectNode();
            line.put("error", error.code()).put("name", error.name());
            line.put("retriable", error.exception() instanceof RetriableException);
            out.println(JSON.writeValueAsString(line));
        }
        for (ApiKeys api : ApiKeys.values()) {
            if (api.hasValidVersion()) {
                ObjectNode line = JSON.createObjectNode();
                line.put("api", api.id).put("name", api.name());
                line.put("oldest", api.oldestVersion()).put("latest", api.latestVersion(false));
                ArrayNode request = line.putArray("requestHeaders");
                ArrayNode response = line.putArray("responseHeaders");
                for (short v = api.oldestVersion(); v <= api.latestVersion(); v++) {
                    request.add(api.requestHeaderVersion(v));
                    response.add(api.responseHeaderVersion(v));
                }
                out.println(JSON.writeValueAsString(line));
            }
        }
    }

    private static String hex(ByteBuffer buffer) {
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return HexFormat.of().formatHex(bytes);
    }

    private static int[] range(String versions) {
        if (versions.equals("none")) {
            return new int[] {0, -1};
        }
        if (versions.endsWith("+")) {
            return new int[] {Integer.parseInt(versions.substring(0, versions.length() - 1)), Short.MAX_VALUE};
        }
        String[] ends = versions.split("-");
        return new int[] {Integer.parseInt(ends[0]), Integer.parseInt(ends[ends.length - 1])};
    }

    /** How the values of a case are chosen. */
    private enum Style { DEFAULTS, FULL, EMPTY, WILD, WILDER }

    /** Makes up values for one version of one message, in the JSON that Kafka's converters read. */
    private static final class Filler {
        private final Map<String, JsonNode> commonStructs = new HashMap<>();
        private final short version;
        private final Style style;
        private final Random random;

        Filler(JsonNode definition, short version, Style style, Random random) {
            definition.path("commonStructs").forEach(s -> commonStructs.put(s.get("name").asText(), s));
            this.version = version;
            this.style = style;
            this.random = random;
        }

        private boolean wild() {
            return style.ordinal() >= Style.WILD.ordinal();
        }

        private boolean holds(JsonNode versions) {
            if (versions == null) {
                return false;
            }
            int[] range = range(versions.asText());
            return range[0] <= version && version <= range[1];
        }

        ObjectNode struct(JsonNode fields) {
            ObjectNode object = JSON.createObjectNode();
            for (JsonNode field : fields) {
                boolean tagged = holds(field.get("taggedVersions"));
                JsonNode versions = field.has("versions") ? field.get("versions") : field.get("taggedVersions");
                if (holds(versions) && !(tagged && wild() && random.nextInt(3) == 0)) {
                    String name = field.get("name").asText();
                    object.set(name.substring(0, 1).toLowerCase() + name.substring(1), value(field));
                }
            }
            return object;
        }

        private JsonNode value(JsonNode field) {
            String type = field.get("type").asText();
            if (holds(field.get("nullableVersions"))
                    && (style == Style.EMPTY || wild() && random.nextInt(4) == 0)) {
                return NullNode.getInstance();
            }
            if (!type.startsWith("[]")) {
                return single(type, field);
            }
            ArrayNode array = JSON.createArrayNode();
            int count = style == Style.EMPTY ? 0 : style == Style.FULL ? 2 : random.nextInt(3);
            if (wild() && type.equals("[]int32") && random.nextInt(4) == 0) {
                count = 140;
            }
            for (int i = 0; i < count; i++) {
                array.add(single(type.substring(2), field));
            }
            return array;
        }

        private JsonNode single(String type, JsonNode field) {
            switch (type) {
                case "bool":
                    return JSON.getNodeFactory().booleanNode(style != Style.EMPTY && random.nextBoolean());
                case "int8":
                    return number(Byte.MIN_VALUE, Byte.MAX_VALUE);
                case "int16":
                    return number(Short.MIN_VALUE, Short.MAX_VALUE);
                case "uint16":
                    return number(0, 0xffff);
                case "int32":
                    return number(Integer.MIN_VALUE, Integer.MAX_VALUE);
                case "uint32":
                    return number(0, 0xffffffffL);
                case "int64":
                    return number(Long.MIN_VALUE, Long.MAX_VALUE);
                case "float64":
                    return JSON.getNodeFactory().numberNode(style == Style.EMPTY ? 0.0 : random.nextInt() / 8.0);
                case "uuid":
                    Uuid uuid = style == Style.EMPTY ? Uuid.ZERO_UUID : new Uuid(random.nextLong(), random.nextInt(9));
                    return JSON.getNodeFactory().textNode(uuid.toString());
                case "string":
                    return JSON.getNodeFactory().textNode(text());
                case "bytes":
                case "records":
                    byte[] bytes = text().getBytes(StandardCharsets.UTF_8);
                    return JSON.getNodeFactory().binaryNode(bytes);
                default:
                    return struct((field.has("fields") ? field : commonStructs.get(type)).get("fields"));
            }
        }

        private JsonNode number(long low, long high) {
            long value;
            if (style == Style.EMPTY) {
                value = 0;
            } else if (style == Style.FULL) {
                value = 1 + random.nextInt(100);
            } else {
                long[] choices = {low, high, 0, 1, Math.max(low, -1), low / 3, high / 5};
                value = choices[random.nextInt(choices.length)];
            }
            return JSON.getNodeFactory().numberNode(value);
        }

        private String text() {
            if (style == Style.EMPTY) {
                return "";
            }
            return TEXTS[style == Style.FULL ? 1 + random.nextInt(3) : random.nextInt(TEXTS.length)];
        }
    }
}
