// Who a program is, and what it asks for.
//
//   -Daccess.user=NAME:SECRET      clients sign as this user; without it they do not sign
//   -Daccess.admin=NAME:SECRET     those that make topics, and look at the cluster, sign as this one
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

final class Access {
    private Access() {}

    /** The hook of a client; null if the program has no user. */
    static RPCHook user() {
        return hook(System.getProperty("access.user"));
    }

    static RPCHook admin() {
        return hook(System.getProperty("access.admin", System.getProperty("access.user")));
    }

    private static RPCHook hook(String pair) {
        return pair == null ? null : signing(pair.substring(0, pair.indexOf(':')), pair.substring(pair.indexOf(':') + 1));
    }

    static RPCHook signing(String user, String secret) {
        return new AclClientRPCHook(new SessionCredentials(user, secret));
    }

    /** Counts requests by code in *counts*, a concurrent map, before *inner* sees them; *inner* may be null. */
    static RPCHook counting(RPCHook inner, Map<Integer, AtomicLong> counts) {
        return new RPCHook() {
            @Override
            public void doBeforeRequest(String address, RemotingCommand request) {
                counts.computeIfAbsent(request.getCode(), code -> new AtomicLong()).incrementAndGet();
                if (inner != null) inner.doBeforeRequest(address, request);
            }

            @Override
            public void doAfterResponse(String address, RemotingCommand request, RemotingCommand response) {}
        };
    }
}
