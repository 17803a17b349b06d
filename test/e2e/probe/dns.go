package main

import (
	"net"
	"strings"

	"github.com/miekg/dns"
)

// serveNames is a name server that knows these names, such as api.example.org=192.0.2.7 or www.example.org=api.example.org,
// an alias.
func serveNames(address string, names []string) {
	records := map[string][]string{}
	for _, given := range names {
		name, to, _ := strings.Cut(given, "=")
		kind := "CNAME"
		if ip := net.ParseIP(to); ip != nil && ip.To4() != nil {
			kind = "A"
		} else if ip != nil {
			kind = "AAAA"
		} else {
			to += "."
		}
		records[dns.Fqdn(name)] = append(records[dns.Fqdn(name)], dns.Fqdn(name)+" 2 IN "+kind+" "+to)
	}
	server := &dns.Server{Addr: address, Net: "udp", Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		answer := new(dns.Msg).SetReply(q)
		for name := q.Question[0].Name; name != ""; {
			next := ""
			for _, text := range records[strings.ToLower(name)] {
				rr, err := dns.NewRR(text)
				if err != nil {
					fail(err.Error())
				}
				if alias, is := rr.(*dns.CNAME); is {
					next = alias.Target
				}
				if next != "" || rr.Header().Rrtype == q.Question[0].Qtype {
					answer.Answer = append(answer.Answer, rr)
				}
			}
			name = next
		}
		if records[strings.ToLower(q.Question[0].Name)] == nil {
			answer.Rcode = dns.RcodeNameError
		}
		_ = w.WriteMsg(answer)
	})}
	if err := server.ListenAndServe(); err != nil {
		fail(err.Error())
	}
}
