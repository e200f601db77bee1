// One application with a producer and a member of an ordered group, at the command of its standard input.
//
//   Member NAMESRV TOPIC GROUP NAME       NAME begins the body of every message: "NAME 0", "NAME 1", ...
//
//   send COUNT    that many messages, one after the other, the queues in turn: {"sent": [queue, offset, number]} or {"failed": why}
//   quit          shut down in order
//
// With -Dunit=NAME every request says that the client belongs to that unit, as a hook of any version can have it.
// It signs its requests with -Daccess.user=NAME:SECRET.
//
// What comes is told as {"got": [queue, offset, body]}. Only what the oldest clients know is used, so that all versions compile it.
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

public final class Member {
    public static void main(String[] arguments) throws Exception {
        Hurry.start();
        String topic = arguments[1];
        String name = arguments[3];
        DefaultMQPushConsumer consumer = consumer(arguments[0], topic, arguments[2]);
        DefaultMQProducer producer = new DefaultMQProducer(name + "-producer", hook());
        producer.setNamesrvAddr(arguments[0]);
        producer.setPollNameServerInterval(1000);
        producer.start();
        Report.line("ready", true);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        int number = 0;
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            int last = number + Integer.parseInt(line.split(" ")[1]);
            for (; number < last; number++) send(producer, topic, name, number);
        }
        producer.shutdown();
        consumer.shutdown();
        Report.line("bye", true);
        System.exit(0); // clients leave threads behind
    }

    private static RPCHook hook() {
        String unit = System.getProperty("unit");
        if (unit == null) return Access.user();
        return new RPCHook() {
            @Override
            public void doBeforeRequest(String address, RemotingCommand request) {
                request.addExtField("scope", unit);
            }

            @Override
            public void doAfterResponse(String address, RemotingCommand request, RemotingCommand response) {}
        };
    }

    private static void send(DefaultMQProducer producer, String topic, String name, int number) throws Exception {
        try {
            Message message = new Message(topic, (name + " " + number).getBytes(StandardCharsets.UTF_8));
            SendResult result = producer.send(message, (queues, sent, turn) -> queues.get((int) turn % queues.size()), number);
            Report.line("sent", List.of(result.getMessageQueue().getQueueId(), result.getQueueOffset(), number));
        } catch (InterruptedException stopped) {
            throw stopped;
        } catch (Exception failed) {
            Report.line("failed", failed.toString());
        }
    }

    private static DefaultMQPushConsumer consumer(String nameServer, String topic, String group) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, hook(), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(nameServer);
        consumer.setPollNameServerInterval(1000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                Report.line("got", List.of(message.getQueueId(), message.getQueueOffset(), new String(message.getBody(), StandardCharsets.UTF_8)));
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        return consumer;
    }
}
