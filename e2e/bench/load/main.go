// Command load drives an HTTPS endpoint with one request over and over and reports rate and latency. With -vary, every
// request is one of its kind: each occurrence of that text is replaced by a number of as many digits.
//
// It does as little as possible per request, so that on a two-core machine the server is what is measured: each connection
// writes prebuilt bytes, and of the answer it reads the status and the body.
//
// With -serve it is a server that does nothing, for how much of a latency is not the measured server's.
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
	"slices"
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
	first := flag.Uint64("first", 1, "the first of those numbers")
	serve := flag.Bool("serve", false, "be a server at -address that does nothing, until killed")
	flag.Parse()
	if *serve {
		fmt.Fprintln(os.Stderr, serveNothing(*address))
		os.Exit(1)
	}
	counter.Store(*first - 1)

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
			w.err = w.drive(*address, own, from, end, *rate/float64(*connections), float64(offset) / *rate)
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

func (w *worker) drive(address string, request varied, from, end time.Time, rate, offset float64) error {
	raw, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	connection := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
	defer connection.Close()
	reader := bufio.NewReaderSize(connection, 64<<10)
	var due time.Time
	if rate > 0 {
		due = time.Now().Add(seconds2(offset))
	}
	for {
		began := time.Now()
		if rate > 0 {
			if wait := due.Sub(began); wait > 0 {
				// A sleep ends up to a millisecond late, which is ours: from when it is sent.
				time.Sleep(wait)
				began = time.Now()
			} else {
				// The answer before came too late to send this one in time, which is the server's: a stall must not hide its own delay.
				began = due
			}
			due = due.Add(seconds2(1 / rate))
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
	length, chunked := 0, false
	for {
		line, err = reader.ReadSlice('\n')
		if err != nil {
			return 0, nil, err
		}
		if len(line) <= 2 {
			break
		}
		switch name, value, _ := bytes.Cut(bytes.ToLower(line), []byte(":")); string(name) {
		case "content-length":
			length, _ = strconv.Atoi(string(bytes.TrimSpace(value)))
		case "transfer-encoding":
			chunked = bytes.Contains(value, []byte("chunked"))
		}
	}
	if !chunked {
		into, err = more(reader, into[:0], length)
		return status, into, err
	}
	for into = into[:0]; ; {
		line, err = reader.ReadSlice('\n')
		if err != nil {
			return 0, nil, err
		}
		size, err := strconv.ParseInt(string(bytes.TrimSpace(line)), 16, 32)
		if err != nil {
			return 0, nil, err
		}
		if into, err = more(reader, into, int(size)); err != nil {
			return 0, nil, err
		}
		if _, err = reader.Discard(2); err != nil || size == 0 {
			return status, into, err
		}
	}
}

// more appends the next length bytes to into.
func more(reader *bufio.Reader, into []byte, length int) ([]byte, error) {
	from := len(into)
	into = slices.Grow(into, length)[:from+length]
	_, err := io.ReadFull(reader, into[from:])
	return into, err
}
