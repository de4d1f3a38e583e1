; A service in Clojure whose requests are go blocks that ask a rates service: rates PORT PARTNER-PORT HOW. HOW is "blocking" (the go block
; calls the partner itself) or "thread" (it waits for a thread that does). The script `clojure` compiles and runs it.
(ns rates
  (:gen-class)
  (:require [clojure.core.async :as a])
  (:import [com.sun.net.httpserver HttpServer HttpHandler HttpExchange] [java.net InetSocketAddress URL] [java.util.concurrent Executors]))

(defn ask [address]
  (slurp (URL. address)))

(defn answer [^HttpExchange exchange text]
  (let [reply (.getBytes (str "rate " (count text) "\n"))]
    (.sendResponseHeaders exchange 200 (alength reply))
    (doto (.getResponseBody exchange) (.write reply) (.close))))

(defn -main [port partner how]
  (let [server (HttpServer/create (InetSocketAddress. "127.0.0.1" (Integer/parseInt port)) 128)
        address (str "http://127.0.0.1:" partner "/rate")]
    (.createContext server "/"
      (reify HttpHandler
        (handle [_ exchange]
          (if (= how "blocking")
            (a/go (answer exchange (ask address)))
            (a/go (answer exchange (a/<! (a/thread (ask address)))))))))
    (.setExecutor server (Executors/newFixedThreadPool 2))
    (.start server)))
