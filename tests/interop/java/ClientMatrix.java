// Runs the checks of the client matrix side by side, each with topics and groups of its own, and prints a JSON line for each.
//
//   ClientMatrix NAMESRV PREFIX [CHECK ...]        exits with 0 only when every check passed
//
// Most of a check is waiting (for a delay level, a retry, a check-back), so all of them share one JVM and one minute.
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

public final class ClientMatrix {
    // A JVM on two cores, with four threads of netty per client, is slower with more at once.
    private static final int AT_ONCE = 6;

    public static void main(String[] arguments) throws Exception {
        Map<String, Check> checks = new LinkedHashMap<>();
        // Those that mostly wait come first.
        AdminChecks.register(checks);
        RetryChecks.register(checks);
        TransactionChecks.register(checks);
        ConsumeChecks.register(checks);
        PullChecks.register(checks);
        SendChecks.register(checks);
        QueryChecks.register(checks);
        List<String> only = Arrays.asList(arguments).subList(2, arguments.length);
        if (!only.isEmpty()) checks.keySet().retainAll(Set.copyOf(only));

        Hurry.start();
        Cluster cluster = new Cluster(arguments[0], arguments[1]);
        AtomicInteger failed = new AtomicInteger();
        ExecutorService threads = Executors.newFixedThreadPool(AT_ONCE);
        checks.forEach((name, check) -> threads.submit(() -> {
            if (!passes(name, check, cluster)) failed.incrementAndGet();
        }));
        threads.shutdown();
        boolean ended = threads.awaitTermination(10, TimeUnit.MINUTES);
        System.exit(ended && failed.get() == 0 ? 0 : 1); // clients leave threads behind
    }

    private static boolean passes(String name, Check check, Cluster cluster) {
        long start = System.nanoTime();
        try {
            check.run(cluster);
            Report.line("check", name, "ok", true, "ms", (System.nanoTime() - start) / 1_000_000);
            return true;
        } catch (Throwable thrown) { // also an AssertionError: one check must not hide the others
            Report.line("check", name, "ok", false, "ms", (System.nanoTime() - start) / 1_000_000, "error", Report.trace(thrown));
            return false;
        }
    }
}
