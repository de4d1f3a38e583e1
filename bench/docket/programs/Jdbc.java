import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Locale;

/**
 * Clients of a database by JDBC. Statements are separated by ";;".
 *
 * Jdbc setup URL STATEMENTS                                      runs them once
 * Jdbc import URL HOLD_MS PAUSE_MS STATEMENTS                    runs them in a transaction that stays open for a while, for ever
 * Jdbc load URL SECONDS CLIENTS GAP_MS FRESH THINK_MS STATEMENTS prints the figures of the clients, as load.c does. With FRESH=1 a client
 *                                                                opens a connection, runs them with pauses to think, and closes it.
 */
public class Jdbc {
    static void run(Connection held, String statements, long thinkMs) throws Exception {
        for (String one : statements.split(";;")) {
            try (Statement statement = held.createStatement()) {
                if (statement.execute(one)) {
                    try (ResultSet rows = statement.getResultSet()) {
                        while (rows.next()) {
                            continue;
                        }
                    }
                }
            }
            Thread.sleep(thinkMs);
        }
    }

    static void bring(String url, long holdMs, long pauseMs, String statements) throws Exception {
        try (Connection held = DriverManager.getConnection(url)) {
            held.setAutoCommit(false);
            while (true) {
                run(held, statements, 0);
                Thread.sleep(holdMs);
                held.commit();
                Thread.sleep(pauseMs);
            }
        }
    }

    static void client(String[] a, long stop, List<Double> taken, int[] errors) {
        boolean fresh = a[5].equals("1");
        Connection held = null;
        while (System.nanoTime() < stop) {
            long begun = System.nanoTime();
            try {
                held = held == null ? DriverManager.getConnection(a[1]) : held;
                run(held, a[7], Long.parseLong(a[6]));
                if (fresh) {
                    held.close();
                    held = null;
                }
                synchronized (taken) {
                    taken.add((System.nanoTime() - begun) / 1e6);
                }
                Thread.sleep(Long.parseLong(a[4]));
            } catch (Exception e) {
                synchronized (taken) {
                    errors[0]++;
                }
                System.err.println(e);
                held = null;
            }
        }
    }

    static void load(String[] a) throws Exception {
        List<Double> taken = new ArrayList<>();
        int[] errors = new int[1];
        double seconds = Double.parseDouble(a[2]);
        long stop = System.nanoTime() + (long) (seconds * 1e9);
        List<Thread> clients = new ArrayList<>();
        for (int n = 0; n < Integer.parseInt(a[3]); n++) {
            Thread one = new Thread(() -> client(a, stop, taken, errors));
            one.setDaemon(true);
            clients.add(one);
            one.start();
        }
        for (Thread one : clients) {
            one.join(Math.max(1, (stop - System.nanoTime()) / 1000000 + 3000));
        }
        synchronized (taken) {
            Collections.sort(taken);
            int n = taken.size();
            double sum = taken.stream().mapToDouble(ms -> ms).sum();
            String times = n == 0 ? "" : String.format(Locale.ROOT, ", \"mean_ms\": %.3f, \"p50_ms\": %.3f, \"p99_ms\": %.3f", sum / n,
                taken.get(n / 2), taken.get((int) (n * 0.99)));
            System.out.printf(Locale.ROOT, "{\"requests\": %d, \"errors\": %d, \"rate\": %.1f%s}%n", n, errors[0], n / seconds, times);
        }
        System.exit(0);
    }

    public static void main(String[] a) throws Exception {
        switch (a[0]) {
            case "setup" -> {
                try (Connection held = DriverManager.getConnection(a[1])) {
                    run(held, a[2], 0);
                }
            }
            case "import" -> bring(a[1], Long.parseLong(a[2]), Long.parseLong(a[3]), a[4]);
            default -> load(a);
        }
    }
}
