// Saves three seconds at every client's shutdown.
//
// A client waits for its event thread to end, which looks at its stop flag only every three seconds, or when it is interrupted:
// it then logs that and goes on. So interrupting it now and then changes nothing but the wait.
final class Hurry {
    private static final long PERIOD_MS = 50;

    private Hurry() {}

    static void start() {
        Thread thread = new Thread(Hurry::run, "hurry");
        thread.setDaemon(true);
        thread.start();
    }

    private static void run() {
        ThreadGroup all = Thread.currentThread().getThreadGroup();
        Thread[] threads = new Thread[4096];
        try {
            while (true) {
                int count = all.enumerate(threads);
                for (int i = 0; i < count; i++) if (threads[i].getName().contains("NettyEventExecutor")) threads[i].interrupt();
                Thread.sleep(PERIOD_MS);
            }
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }
}
