// A gRPC service over TLS, and an HTTP gateway before it.
//
//	quotes serve LISTEN CERT KEY             the standard health service
//	quotes gateway LISTEN TARGET CERT KEEP   asks it in each request; with KEEP=0 it makes a client for each
package main

import (
	"context"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func serve(listen, cert, key string) {
	secret, err := credentials.NewServerTLSFromFile(cert, key)
	check(err)
	at, err := net.Listen("tcp", listen)
	check(err)
	server := grpc.NewServer(grpc.Creds(secret))
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	check(server.Serve(at))
}

func gateway(listen, target, cert string, keep bool) {
	trusted, err := credentials.NewClientTLSFromFile(cert, "quotes.internal")
	check(err)
	dial := func() *grpc.ClientConn {
		held, err := grpc.NewClient(target, grpc.WithTransportCredentials(trusted))
		check(err)
		return held
	}
	var kept *grpc.ClientConn
	if keep {
		kept = dial()
	}
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		held := kept
		if held == nil {
			held = dial()
			defer held.Close()
		}
		limit, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		defer cancel()
		reply, err := grpc_health_v1.NewHealthClient(held).Check(limit, &grpc_health_v1.HealthCheckRequest{})
		if err != nil {
			http.Error(w, err.Error(), 502)
			return
		}
		w.Write([]byte(reply.Status.String() + "\n"))
	})
	check(http.ListenAndServe(listen, nil))
}

func main() {
	a := os.Args[1:]
	if a[0] == "serve" {
		serve(a[1], a[2], a[3])
	} else {
		gateway(a[1], a[2], a[3], a[4] == "1")
	}
}
