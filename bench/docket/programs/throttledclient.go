// A web page that looks up an object of an API in each request, through a client with a token bucket like that of client-go:
// `throttledclient LISTEN URL QPS`. A lookup that finds no token sleeps until its own is there.
package main

import (
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
)

// limiter hands out tokens at a fixed rate, after a burst of ten.
type limiter struct {
	mu       sync.Mutex
	interval time.Duration
	next     time.Time
}

func (l *limiter) wait() {
	l.mu.Lock()
	earliest := time.Now().Add(-10 * l.interval)
	if l.next.Before(earliest) {
		l.next = earliest
	}
	l.next = l.next.Add(l.interval)
	due := l.next
	l.mu.Unlock()
	time.Sleep(time.Until(due))
}

func main() {
	qps, err := strconv.ParseFloat(os.Args[3], 64)
	if err != nil {
		log.Fatal(err)
	}
	limit := &limiter{interval: time.Duration(float64(time.Second) / qps)}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		limit.wait()
		found, err := client.Get(os.Args[2])
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		body, _ := io.ReadAll(found.Body)
		found.Body.Close()
		w.Write(body)
	})
	log.Fatal(http.ListenAndServe(os.Args[1], nil))
}
