package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	webTable      = "resident"
	webPage       = 1_000
	webFailure    = 300
	webConnection = 4_096
)

// web is a service over HTTP, one request for each write, as independent clients send them: no client knows of another,
// none waits for another's write. Requests rotate over the nodes.
type web struct {
	client *http.Client
	nodes  []string
	write  func(ctx context.Context, node string, turn Turn, key string, value []byte) error
	stored func(ctx context.Context, prefix string, found func(string, int)) error
}

func openWeb(o Options) (Target, error) {
	transport := &http.Transport{MaxIdleConnsPerHost: webConnection, MaxIdleConns: 0, DisableCompression: true}
	target := &web{client: &http.Client{Transport: transport}, nodes: o.Addresses}
	switch {
	case o.Target == "restate":
		// A virtual object for each key, whose handler sets its state; the ingress remembers the idempotency key.
		target.write = target.restateWrite
		target.stored = func(ctx context.Context, prefix string, found func(string, int)) error {
			return target.restateStored(ctx, o.Admin, found)
		}
		return target, nil
	case o.Mode == "key":
		// A PUT of a row under an Idempotency-Key.
		target.write = target.keyWrite
	case o.Mode == "session":
		// Each caller has a session, and sends one operation a request.
		sessions, err := target.openSessions(o.Callers)
		if err != nil {
			return nil, err
		}
		target.write = sessions.write
	default:
		return nil, errors.New("no such mode")
	}
	target.stored = target.rowsStored
	declared, err := json.Marshal(map[string]string{"kind": "resident"})
	if err != nil {
		return nil, err
	}
	_, err = target.ask(context.Background(), http.MethodPut, target.nodes[0]+"/v1/tables/"+webTable, declared, "")
	return target, err
}

func (w *web) Write(ctx context.Context, turn Turn, key string, value []byte) error {
	return w.write(ctx, w.nodes[turn.Node(len(w.nodes))], turn, key, value)
}

// quoted is the value as JSON text of the same length: the quotes are two of its bytes.
func quoted(value []byte) []byte {
	text := bytes.Clone(value)
	text[0], text[len(text)-1] = '"', '"'
	return text
}

func (w *web) restateWrite(ctx context.Context, node string, _ Turn, key string, value []byte) error {
	_, err := w.ask(ctx, http.MethodPost, node+"/kv/"+key+"/put", quoted(value), key)
	return err
}

func (w *web) keyWrite(ctx context.Context, node string, _ Turn, key string, value []byte) error {
	_, err := w.ask(ctx, http.MethodPut, node+"/v1/tables/"+webTable+"/rows/"+key, quoted(value), key)
	return err
}

// ask sends one request and returns the body of its answer, which must be a success.
func (w *web) ask(ctx context.Context, method, url string, body []byte, key string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	if key != "" {
		request.Header.Set("Idempotency-Key", `"`+key+`"`)
	}
	answer, err := w.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode/100 != 2 {
		err = fmt.Errorf("%s: %s", answer.Status, text[:min(len(text), webFailure)])
	}
	return text, err
}

type webSession struct {
	ID       string
	Sequence int
}

type webSessions struct {
	web *web
	of  []webSession
}

func (w *web) openSessions(count int) (*webSessions, error) {
	sessions := &webSessions{web: w, of: make([]webSession, count)}
	for caller := range count {
		body := fmt.Appendf(nil, `{"nonce":"%032x"}`, time.Now().UnixNano())
		answer, err := w.ask(context.Background(), http.MethodPost, w.nodes[caller%len(w.nodes)]+"/v1/sessions", body, "")
		if err != nil {
			return nil, err
		}
		var opened struct {
			ClientID string `json:"client_id"`
		}
		if err := json.Unmarshal(answer, &opened); err != nil {
			return nil, err
		}
		sessions.of[caller] = webSession{ID: opened.ClientID}
	}
	return sessions, nil
}

func (s *webSessions) write(ctx context.Context, node string, turn Turn, key string, value []byte) error {
	mine := &s.of[turn.Caller]
	if turn.Attempt == 0 { // a retry has the number that it had
		mine.Sequence++
	}
	body := fmt.Appendf(make([]byte, 0, len(value)+200), `{"client_id":"%s","epoch":1,"first_incomplete":%d,"operations":`+
		`[{"sequence":%d,"op":"put","table":"%s","key":"%s","value":%s}]}`,
		mine.ID, mine.Sequence, mine.Sequence, webTable, key, quoted(value))
	answer, err := s.web.ask(ctx, http.MethodPost, node+"/v1/operations", body, "")
	if err != nil {
		return err
	}
	if !bytes.Contains(answer, []byte(`"applied"`)) {
		return fmt.Errorf("not applied: %s", answer[:min(len(answer), webFailure)])
	}
	return nil
}

func (w *web) rowsStored(ctx context.Context, prefix string, found func(string, int)) error {
	page := fmt.Sprintf("%s/v1/tables/%s/rows?limit=%d&prefix=%s", w.nodes[0], webTable, webPage, url.QueryEscape(prefix))
	for next := page; next != ""; {
		answer, err := w.ask(ctx, http.MethodGet, next, nil, "")
		if err != nil {
			return err
		}
		var rows struct {
			Rows []struct{ Key string }
			Next string
		}
		if err := json.Unmarshal(answer, &rows); err != nil {
			return err
		}
		for _, row := range rows.Rows {
			found(row.Key, 1)
		}
		if next = rows.Next; next != "" {
			next = page + "&after=" + url.QueryEscape(next)
		}
	}
	return nil
}

func (w *web) restateStored(ctx context.Context, admin string, found func(string, int)) error {
	query, err := json.Marshal(map[string]string{"query": "SELECT service_key FROM state WHERE service_name = 'kv'"})
	if err != nil {
		return err
	}
	answer, err := w.ask(ctx, http.MethodPost, strings.TrimSuffix(admin, "/")+"/query", query, "")
	if err != nil {
		return err
	}
	var rows struct {
		Rows []struct {
			Key string `json:"service_key"`
		}
	}
	if err := json.Unmarshal(answer, &rows); err != nil {
		return err
	}
	for _, row := range rows.Rows {
		found(row.Key, 1)
	}
	return nil
}

func (w *web) Stored(ctx context.Context, prefix string, found func(string, int)) error {
	return w.stored(ctx, prefix, found)
}

func (w *web) Standing(context.Context) (Standing, error) {
	return Standing{Leader: -1}, errors.New("this target is asked by bench.peers itself")
}

func (w *web) Close() {
	w.client.CloseIdleConnections()
}
