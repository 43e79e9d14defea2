// Command load drives an HTTPS endpoint with one request over and over and reports rate and latency. With -vary, every
// request is one of its kind: each occurrence of that text is replaced by a number of as many digits.
//
// It does as little as possible per request, so that on a two-core machine the server is what is measured: each connection
// writes prebuilt bytes, and of the answer it reads the status, the content-length and the body.
package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"sort"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

type worker struct {
	latencies []time.Duration
	failed    int
	served    int
	last      []byte
	err       error
}

func main() {
	address := flag.String("address", "127.0.0.1:8443", "host:port")
	path := flag.String("path", "/mutate-pod", "")
	bodyFile := flag.String("body", "", "file with the request's body")
	connections := flag.Int("connections", 16, "")
	seconds := flag.Float64("seconds", 5, "")
	warmup := flag.Float64("warmup", 1, "seconds that are not counted")
	rate := flag.Float64("rate", 0, "requests per second over all connections; 0: as fast as answers come")
	vary := flag.String("vary", "", "a text in the body that becomes a different number in every request")
	flag.Parse()

	body, err := os.ReadFile(*bodyFile)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: webhook\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", *path, len(body))
	request := append([]byte(head), body...)
	places := occurrences(request, *vary)
	if *vary != "" && len(places) == 0 {
		fmt.Fprintln(os.Stderr, "load: the body does not contain the text of -vary")
		os.Exit(2)
	}

	start := time.Now()
	from, end := start.Add(seconds2(*warmup)), start.Add(seconds2(*warmup+*seconds))
	workers := make([]worker, *connections)
	var group sync.WaitGroup
	for i := range workers {
		group.Add(1)
		go func(w *worker, offset int) {
			defer group.Done()
			own := varied{append([]byte(nil), request...), places, len(*vary)}
			w.err = w.drive(*address, own, from, end, *rate/float64(*connections), offset)
		}(&workers[i], i)
	}
	group.Wait()

	var all []time.Duration
	failed, served := 0, 0
	for i := range workers {
		if workers[i].err != nil {
			fmt.Fprintln(os.Stderr, workers[i].err)
			os.Exit(1)
		}
		all = append(all, workers[i].latencies...)
		failed += workers[i].failed
		served += workers[i].served
	}
	if len(all) == 0 {
		fmt.Fprintln(os.Stderr, "load: not one answer")
		os.Exit(1)
	}
	sort.Slice(all, func(a, b int) bool { return all[a] < all[b] })
	at := func(q float64) float64 { return float64(all[int(q*float64(len(all)-1))].Nanoseconds()) / 1e6 }
	_ = json.NewEncoder(os.Stdout).Encode(map[string]any{
		"requests": len(all), "served": served, "failed": failed, "per_s": float64(len(all)) / *seconds,
		"p50_ms": at(0.5), "p99_ms": at(0.99), "max_ms": at(1), "answer": string(workers[0].last),
	})
}

func seconds2(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// varied is a request whose places are filled with a number that no other request has.
type varied struct {
	bytes  []byte
	places []int
	digits int
}

var counter atomic.Uint64

func (v varied) next() []byte {
	if len(v.places) == 0 {
		return v.bytes
	}
	number := counter.Add(1)
	for digit := v.digits - 1; digit >= 0; digit-- {
		for _, place := range v.places {
			v.bytes[place+digit] = byte('0' + number%10)
		}
		number /= 10
	}
	return v.bytes
}

func occurrences(in []byte, text string) (places []int) {
	for at := 0; text != ""; {
		next := bytes.Index(in[at:], []byte(text))
		if next < 0 {
			break
		}
		places = append(places, at+next)
		at += next + len(text)
	}
	return places
}

func (w *worker) drive(address string, request varied, from, end time.Time, rate float64, offset int) error {
	raw, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	connection := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
	defer connection.Close()
	reader := bufio.NewReaderSize(connection, 64<<10)
	var next time.Time
	if rate > 0 {
		next = time.Now().Add(time.Duration(float64(offset) / rate / 16 * float64(time.Second)))
	}
	for {
		began := time.Now()
		if rate > 0 {
			// From when it was due, not from when it could be sent: a stalled server must not hide its own delay.
			time.Sleep(time.Until(next))
			began = next
			next = next.Add(time.Duration(float64(time.Second) / rate))
		}
		if time.Now().After(end) {
			return nil
		}
		if _, err := connection.Write(request.next()); err != nil {
			return err
		}
		status, body, err := answer(reader, w.last)
		if err != nil {
			return err
		}
		w.last = body
		w.served++
		if began.After(from) {
			w.latencies = append(w.latencies, time.Since(began))
			if status != 200 {
				w.failed++
			}
		}
	}
}

func answer(reader *bufio.Reader, into []byte) (int, []byte, error) {
	line, err := reader.ReadSlice('\n')
	if err != nil {
		return 0, nil, err
	}
	status, _ := strconv.Atoi(string(line[9:12]))
	length := 0
	for {
		line, err = reader.ReadSlice('\n')
		if err != nil {
			return 0, nil, err
		}
		if len(line) <= 2 {
			break
		}
		if bytes.HasPrefix(bytes.ToLower(line), []byte("content-length:")) {
			length, _ = strconv.Atoi(string(bytes.TrimSpace(line[15:])))
		}
	}
	if cap(into) < length {
		into = make([]byte, length)
	}
	into = into[:length]
	_, err = io.ReadFull(reader, into)
	return status, into, err
}
