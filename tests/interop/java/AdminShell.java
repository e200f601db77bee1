// Runs mqadmin commands one after the other in one JVM: starting one for each costs seconds.
//
// Reads a line of arguments, separated by tabs; answers with one JSON line that holds everything the command printed.
// One command is our own: `seed TOPIC GROUP COUNT -n NAMESRV` sends COUNT messages that GROUP consumes, and COUNT that it does not.
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.tools.command.MQAdminStartup;

public final class AdminShell {
    public static void main(String[] arguments) throws Exception {
        Hurry.start();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Report.line("ready", true);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t");
            if (words[0].equals("seed")) seed(line, new Cluster(words[5], ""), words[1], words[2], Integer.parseInt(words[3]));
            else Report.line("command", line, "printed", mqadmin(words));
        }
        System.exit(0); // clients leave threads behind
    }

    private static String mqadmin(String[] words) {
        PrintStream out = System.out;
        PrintStream err = System.err;
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        try (PrintStream captured = new PrintStream(printed, true, StandardCharsets.UTF_8)) {
            System.setOut(captured);
            System.setErr(captured);
            MQAdminStartup.main0(words, null);
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
        return printed.toString(StandardCharsets.UTF_8);
    }

    private static void seed(String line, Cluster cluster, String topic, String group, int count) throws Exception {
        Ledger ledger = new Ledger();
        DefaultMQProducer producer = cluster.producer(group + "-seed");
        SendResult first = null;
        for (int i = 0; i < count; i++) {
            SendResult result = producer.send(ledger.sent(cluster.message(topic, i)));
            first = first == null ? result : first;
        }
        DefaultMQPushConsumer consumer = cluster.consuming(group, topic, "*", ledger);
        ledger.awaitAll();
        consumer.shutdown();
        for (int i = count; i < 2 * count; i++) producer.send(cluster.message(topic, i));
        producer.shutdown();
        cluster.admin.shutdown();
        Report.line("command", line, "printed", first.getMsgId() + " " + first.getOffsetMsgId() + " " + first.getMessageQueue().getBrokerName()
            + " " + first.getMessageQueue().getQueueId() + " " + first.getQueueOffset());
    }
}
