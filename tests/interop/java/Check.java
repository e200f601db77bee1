// One behaviour that a client relies on. It throws when the cluster does not behave.
@FunctionalInterface
interface Check {
    void run(Cluster cluster) throws Exception;
}
