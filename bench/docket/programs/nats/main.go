// A service behind NATS and its clients.
//
//	nats serve URL BACKEND CONCURRENT FILE   answers orders.get; each answer needs one HTTP request to BACKEND
//	nats load URL SECONDS CLIENTS            clients that ask, one request each at a time; prints what load.c prints
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(url, backend string, concurrent bool, ready string) {
	connection, err := nats.Connect(url)
	check(err)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	answer := func(message *nats.Msg) {
		reply, err := client.Get(backend)
		check(err)
		body, _ := io.ReadAll(reply.Body)
		reply.Body.Close()
		message.Respond(body)
	}
	_, err = connection.Subscribe("orders.get", func(message *nats.Msg) {
		if concurrent {
			go answer(message)
		} else {
			answer(message)
		}
	})
	check(err)
	check(connection.Flush())
	check(os.WriteFile(ready, nil, 0o644))
	select {}
}

func load(url string, seconds float64, clients int) {
	until := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	var mutex sync.Mutex
	var group sync.WaitGroup
	var ms []float64
	errors, sum := 0, 0.0
	for range clients {
		group.Add(1)
		go func() {
			defer group.Done()
			connection, err := nats.Connect(url)
			check(err)
			defer connection.Close()
			for time.Now().Before(until) {
				begun := time.Now()
				_, err := connection.Request("orders.get", []byte("4711"), 5*time.Second)
				took := float64(time.Since(begun).Microseconds()) / 1e3
				mutex.Lock()
				if err != nil {
					errors++
				} else {
					ms, sum = append(ms, took), sum+took
				}
				mutex.Unlock()
				time.Sleep(5 * time.Millisecond)
			}
		}()
	}
	group.Wait()
	sort.Float64s(ms)
	fmt.Printf("{\"requests\": %d, \"errors\": %d, \"rate\": %.1f", len(ms), errors, float64(len(ms))/seconds)
	if n := len(ms); n > 0 {
		fmt.Printf(", \"mean_ms\": %.3f, \"p50_ms\": %.3f, \"p99_ms\": %.3f", sum/float64(n), ms[n/2], ms[n*99/100])
	}
	fmt.Println("}")
}

func main() {
	if os.Args[1] == "serve" {
		serve(os.Args[2], os.Args[3], os.Args[4] == "1", os.Args[5])
	}
	seconds, err := strconv.ParseFloat(os.Args[3], 64)
	check(err)
	clients, err := strconv.Atoi(os.Args[4])
	check(err)
	load(os.Args[2], seconds, clients)
}
