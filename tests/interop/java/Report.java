// One JSON line per fact, on standard output: what the Python side reads.
import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.stream.Collectors;

final class Report {
    private Report() {}

    /** Prints one object made of key, value, key, value, ... */
    static void line(Object... pairs) {
        Map<String, Object> fields = new LinkedHashMap<>();
        for (int i = 0; i < pairs.length; i += 2) fields.put((String) pairs[i], pairs[i + 1]);
        String text = json(fields);
        synchronized (Report.class) {
            System.out.println(text);
            System.out.flush();
        }
    }

    static String trace(Throwable thrown) {
        StringWriter text = new StringWriter();
        thrown.printStackTrace(new PrintWriter(text));
        return text.toString();
    }

    private static String json(Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean) return String.valueOf(value);
        if (value instanceof Map) {
            return ((Map<?, ?>) value).entrySet().stream()
                .map(entry -> json(String.valueOf(entry.getKey())) + ":" + json(entry.getValue()))
                .collect(Collectors.joining(",", "{", "}"));
        }
        if (value instanceof Iterable) {
            StringBuilder all = new StringBuilder();
            for (Object item : (Iterable<?>) value) all.append(all.length() == 0 ? "" : ",").append(json(item));
            return "[" + all + "]";
        }
        StringBuilder out = new StringBuilder("\"");
        for (char c : value.toString().toCharArray()) {
            if (c == '"' || c == '\\') out.append('\\').append(c);
            // A lone half of a surrogate pair would not survive the encoding of the stream.
            else if (c < ' ' || c == 0x7f || Character.isSurrogate(c)) out.append(String.format("\\u%04x", (int) c));
            else out.append(c);
        }
        return out.append('"').toString();
    }
}
