// A service on net/http, or a forwarder, with one fault per flag.
package main

import (
	"crypto/sha256"
	"flag"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

var (
	listen   = flag.String("listen", ":8080", "address to listen on")
	forward  = flag.String("forward", "", "forward TCP to this address instead of serving HTTP")
	buffer   = flag.Int("buffer", 65536, "bytes per copy of the forwarder")
	sleep    = flag.Duration("sleep", 0, "timer in each request")
	lock     = flag.Duration("lock", 0, "one mutex held this long in each request")
	cpu      = flag.Duration("cpu", 0, "computation in each request")
	ask      = flag.String("ask", "", "URL to get in each request")
	times    = flag.Int("times", 1, "how often to get it, one after the other")
	idle     = flag.Int("idle", 100, "idle connections kept to the asked host; -1 closes each")
	conns    = flag.Int("conns", 0, "at most this many connections to it")
	limit    = flag.Int("limit", 0, "at most this many requests at a time")
	garbage  = flag.Int("garbage", 0, "KiB to allocate in each request")
	keep     = flag.Int("keep", 0, "MiB of live pointers")
	syncFile = flag.String("fsync", "", "file to append to and sync in each request")
	drain    = flag.Bool("drain", false, "read the body of each request")
	body     = flag.Int("body", 200, "bytes of the reply")
)

var hold sync.Mutex
var kept []*[8]*int
var last []byte

//go:noinline
func keepAlive(b []byte) { last = b }

func compute(d time.Duration) {
	sum := sha256.Sum256(nil)
	for end := time.Now().Add(d); time.Now().Before(end); {
		sum = sha256.Sum256(sum[:])
	}
}

func main() {
	flag.Parse()
	if *forward != "" {
		relay()
	}
	for i := 0; i < *keep<<20/64; i++ {
		kept = append(kept, new([8]*int))
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: *idle, DisableKeepAlives: *idle < 0, MaxConnsPerHost: *conns}}
	var slots chan struct{}
	if *limit > 0 {
		slots = make(chan struct{}, *limit)
	}
	reply := make([]byte, *body)
	var file *os.File
	if len(*syncFile) > 1 {
		file, _ = os.Create(*syncFile)
	}
	handler := func(w http.ResponseWriter, r *http.Request) {
		if slots != nil {
			slots <- struct{}{}
			defer func() { <-slots }()
		}
		if *drain {
			io.Copy(io.Discard, r.Body)
		}
		if *sleep > 0 {
			time.Sleep(*sleep)
		}
		if *lock > 0 {
			hold.Lock()
			time.Sleep(*lock)
			hold.Unlock()
		}
		if *cpu > 0 {
			compute(*cpu)
		}
		if file != nil {
			hold.Lock()
			file.Write(reply)
			file.Sync()
			hold.Unlock()
		}
		for i := 0; *ask != "" && i < *times; i++ {
			answer, err := client.Get(*ask)
			if err != nil {
				http.Error(w, err.Error(), 502)
				return
			}
			io.Copy(io.Discard, answer.Body)
			answer.Body.Close()
		}
		for i := 0; i < *garbage; i++ {
			keepAlive(make([]byte, 1024))
		}
		w.Write(reply)
	}
	log.Fatal(http.ListenAndServe(*listen, http.HandlerFunc(handler)))
}

func relay() {
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	for {
		a, err := l.Accept()
		if err != nil {
			continue
		}
		b, err := net.Dial("tcp", *forward)
		if err != nil {
			a.Close()
			continue
		}
		go pump(a, b)
		go pump(b, a)
	}
}

func pump(to, from net.Conn) {
	defer to.Close()
	part := make([]byte, *buffer)
	for {
		n, err := from.Read(part)
		if err != nil {
			return
		}
		if _, err := to.Write(part[:n]); err != nil {
			return
		}
	}
}

