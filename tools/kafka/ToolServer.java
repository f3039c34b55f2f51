import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's tools one after the other in one JVM, whose start costs more than what they do.
 *
 * <p>A line of standard input is a JSON list: the class, what it is to read from its own standard
 * input, and its arguments. A line of standard output tells the exit code and what the tool said.
 */
public final class ToolServer {
    /** Thrown where a tool would have ended the process. */
    private static final class Ended extends Error {
        Ended() {
            super(null, null, false, false);
        }
    }

    /** What a tool leaves to the end of its process, such as sending its last records. */
    private static final List<Runnable> HOOKS = new ArrayList<>();

    private static Integer code;

    public static void main(String[] none) throws Exception {
        ObjectMapper json = new ObjectMapper();
        PrintStream answers = System.out;
        Exit.setExitProcedure(ToolServer::end);
        Exit.setHaltProcedure(ToolServer::end);
        Exit.setShutdownHookAdder((name, hook) -> HOOKS.add(hook));
        BufferedReader lines =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            List<?> asked = json.readValue(line, List.class);
            byte[] input = ((String) asked.get(1)).getBytes(StandardCharsets.UTF_8);
            String[] arguments = asked.stream().skip(2).toArray(String[]::new);
            System.setIn(new ByteArrayInputStream(input));
            answers.println(json.writeValueAsString(run((String) asked.get(0), arguments)));
            answers.flush();
        }
    }

    private static Map<String, Object> run(String name, String[] arguments) throws Exception {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        PrintStream realOut = System.out;
        PrintStream realErr = System.err;
        code = null;
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        try {
            Class.forName(name).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (java.lang.reflect.InvocationTargetException thrown) {
            if (!(thrown.getCause() instanceof Ended)) {
                thrown.getCause().printStackTrace();
                code = 1;
            }
        } finally {
            HOOKS.forEach(Runnable::run);
            HOOKS.clear();
            System.setOut(realOut);
            System.setErr(realErr);
        }
        return Map.of(
                "code", code == null ? 0 : code,
                "out", out.toString(StandardCharsets.UTF_8),
                "err", err.toString(StandardCharsets.UTF_8));
    }

    /** The first code counts: a tool may meet its own ending as one more failure. */
    private static void end(int status, String message) {
        if (code == null) code = status;
        throw new Ended();
    }
}
