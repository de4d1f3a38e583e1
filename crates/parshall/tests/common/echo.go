// Echoes 64 bytes after some work, with a goroutine for each connection, which the runtime moves between threads: echo CPU_US.
// Prints `ready PORT`; ends with its stdin.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
)

var sink uint64

func main() {
	rounds, _ := strconv.Atoi(os.Args[1])
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	fmt.Println("ready", listener.Addr().(*net.TCPAddr).Port)
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			data := make([]byte, 64)
			for {
				if _, err := io.ReadFull(connection, data); err != nil {
					return
				}
				x := uint64(1)
				for i := 0; i < rounds*1000; i++ {
					x = x*6364136223846793005 + 1442695040888963407
				}
				sink = x
				if _, err := connection.Write(data); err != nil {
					return
				}
			}
		}()
	}
}
