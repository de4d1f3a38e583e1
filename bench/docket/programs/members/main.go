// A service on database/sql with a pool of connections: members LISTEN DATABASE CONNECTIONS CLOSE [IDLE]
//
// The pool keeps all its connections, or IDLE of them when they are idle.
//
// /login asks whether there is a row and does not read further. With CLOSE=0 it also does not close its rows, so that its connection
// does not return to the pool. / reads a row as it should.
package main

import (
	"database/sql"
	"log"
	"net/http"
	"os"
	"strconv"

	_ "github.com/lib/pq"
)

func main() {
	listen, url, closes := os.Args[1], os.Args[2], os.Args[4] == "1"
	connections, err := strconv.Atoi(os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	database, err := sql.Open("postgres", url)
	if err != nil {
		log.Fatal(err)
	}
	database.SetMaxOpenConns(connections)
	idle := connections
	if len(os.Args) > 5 {
		if idle, err = strconv.Atoi(os.Args[5]); err != nil {
			log.Fatal(err)
		}
	}
	database.SetMaxIdleConns(idle)
	http.HandleFunc("/login", func(w http.ResponseWriter, r *http.Request) {
		rows, err := database.Query("select id from account where balance >= $1 limit 5", 0)
		if err != nil {
			http.Error(w, err.Error(), 500)
			return
		}
		if closes {
			defer rows.Close()
		}
		if !rows.Next() {
			http.Error(w, "nobody", 404)
			return
		}
		w.Write([]byte("welcome\n"))
	})
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		var balance int
		if err := database.QueryRow("select balance from account where id = $1", 7).Scan(&balance); err != nil {
			http.Error(w, err.Error(), 500)
			return
		}
		w.Write([]byte("balance " + strconv.Itoa(balance) + "\n"))
	})
	log.Fatal(http.ListenAndServe(listen, nil))
}
