// SPDX-License-Identifier: LGPL-2.1-or-later
/** The same as tests/attach/pulse.go, for a JVM: methods are compiled, thrown away and collected, null pointers are signals. */
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;

public class Pulse {
    static volatile boolean stop;
    static final AtomicInteger wrong = new AtomicInteger();

    static void work() {
        while (!stop) {
            List<String> list = new ArrayList<>();
            for (int i = 0; i < 20000; i++)
                list.add(Integer.toString(i * 7));
            long sum = 0;
            for (String text : list)
                sum += Long.parseLong(text);
            if (sum != 7L * 19999 * 20000 / 2)
                wrong.incrementAndGet();
            try {
                String none = sum > 0 ? null : "";
                none.length();
                wrong.incrementAndGet();
            } catch (NullPointerException expected) {
                continue;
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < 3; i++)
            threads.add(new Thread(Pulse::work));
        for (Thread thread : threads)
            thread.start();
        System.out.println("ready");
        while (System.in.read() >= 0)
            continue;
        stop = true;
        for (Thread thread : threads)
            thread.join();
        System.out.println("rounds, wrong " + wrong.get());
        System.exit(7);
    }
}
