import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.server.config.AbstractKafkaConfig;
import org.apache.kafka.server.config.DynamicBrokerConfig;
import org.apache.kafka.server.config.ServerTopicConfigSynonyms;
import org.apache.kafka.storage.internals.log.LogConfig;

/** Prints every setting that Kafka's jars on the class path declare, one line of facts each. */
public final class DumpSettings {
    public static void main(String[] args) {
        print("topic", LogConfig.configDefCopy(), new HashMap<>());
        print("broker", AbstractKafkaConfig.CONFIG_DEF, DynamicBrokerConfig.dynamicConfigUpdateModes());
        new TreeMap<>(ServerTopicConfigSynonyms.ALL_TOPIC_CONFIG_SYNONYMS).forEach((name, synonyms) -> {
            StringBuilder line = new StringBuilder("synonyms\t" + name + "\t");
            synonyms.forEach(synonym -> line.append(synonym.name()).append(' '));
            System.out.println(line.toString().strip());
        });
        printDefaults("producer", ProducerConfig.configDef());
        printDefaults("consumer", ConsumerConfig.configDef());
        printDefaults("admin", AdminClientConfig.configDef());
    }

    private static void printDefaults(String client, ConfigDef definitions) {
        new TreeMap<>(definitions.configKeys()).forEach((name, key) ->
            System.out.println(String.join("\t", client, name, key.type.toString(), value(key))));
    }

    private static void print(String level, ConfigDef definitions, Map<String, String> modes) {
        new TreeMap<>(definitions.configKeys()).forEach((name, key) -> System.out.println(String.join("\t",
            level,
            name,
            key.type.toString(),
            value(key),
            key.validator == null ? "" : key.validator.toString().replace("\n", " "),
            key.importance.toString(),
            modes.getOrDefault(name, level.equals("topic") ? "" : "read-only"),
            key.internalConfig ? "internal" : "")));
    }

    private static String value(ConfigDef.ConfigKey key) {
        if (key.defaultValue == ConfigDef.NO_DEFAULT_VALUE) {
            return "<required>";
        }
        return key.defaultValue == null ? "<null>" : ConfigDef.convertToString(key.defaultValue, key.type);
    }
}
