package portmap

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"
)

// answerPCP is what a router answers to pcpQuestion.
func answerPCP(question []byte, code byte, external string) []byte {
	a := netip.MustParseAddrPort(external)
	b := bytes.Clone(question)
	b[1] |= answered
	b[3] = code
	copy(b[24-12:], make([]byte, 12))
	b[24+18], b[24+19] = byte(a.Port()>>8), byte(a.Port())
	address := a.Addr().As16()
	copy(b[24+20:], address[:])
	return b
}

func TestAnswersOfPCP(t *testing.T) {
	old := mapping{nonce: [12]byte{1, 2, 3}}
	question := pcpQuestion(here, port, old, 7200)
	good := answerPCP(question, 0, "45.0.0.2:9999")
	if m, err := readPCP(good, port, old.nonce); err != nil || m.external.String() != "45.0.0.2:9999" || m.lifetime != wanted {
		t.Errorf("the mapping is %+v: %v", m, err)
	}
	if _, err := readPCP(answerPCP(question, 2, "45.0.0.2:9999"), port, old.nonce); err == nil || errors.Is(err, errForeign) {
		t.Errorf("a refusal is %v", err)
	}
	for what, b := range map[string][]byte{
		"the question itself": question, "half of an answer": good[:40], "nothing": nil,
		"an answer with another nonce": answerPCP(pcpQuestion(here, port, mapping{}, 7200), 0, "45.0.0.2:9999"),
		"an answer for another port":   answerPCP(pcpQuestion(here, port+1, old, 7200), 0, "45.0.0.2:9999"),
	} {
		if _, err := readPCP(b, port, old.nonce); !errors.Is(err, errForeign) {
			t.Errorf("%s is not ignored: %v", what, err)
		}
	}
}

// A router can only lead to itself, whatever it says.
func TestURLsThatLeadElsewhereAreRefused(t *testing.T) {
	location := func(u string) []byte { return []byte("HTTP/1.1 200 OK\r\nLOCATION: " + u + "\r\n\r\n") }
	base, err := readLocation(here, location("http://192.168.7.1:5000/rootDesc.xml"))
	if err != nil {
		t.Fatal(err)
	}
	if at, err := here.atGateway(base, "/ctl/IPConn"); err != nil || at.String() != "http://192.168.7.1:5000/ctl/IPConn" {
		t.Errorf("the control URL is %v: %v", at, err)
	}
	for _, elsewhere := range []string{
		"http://192.168.7.3/", "http://127.0.0.1:7700/", "http://169.254.169.254/latest", "https://192.168.7.1/", "http://gateway/",
		"http://root@192.168.7.1/", "http://[::ffff:192.168.7.1]/", "//192.168.7.3/", "file:///etc/passwd", "http://192.168.7.1@192.168.7.3/",
	} {
		if u, err := readLocation(here, location(elsewhere)); err == nil {
			t.Errorf("the description would be fetched from %v", u)
		}
		if u, err := here.atGateway(base, elsewhere); err == nil {
			t.Errorf("calls would go to %v", u)
		}
	}
}

func TestDescriptionOfARouter(t *testing.T) {
	service := func(kind, control string) string {
		return "<service><serviceType>" + kind + "</serviceType><controlURL>" + control + "</controlURL></service>"
	}
	text := "<root><device><serviceList>" + service("urn:schemas-upnp-org:service:Layer3Forwarding:1", "/no") + "</serviceList><deviceList><device><serviceList>" +
		service("urn:schemas-upnp-org:service:WANIPConnection:2", "/ctl/IPConn") + "</serviceList></device></deviceList></device></root>"
	if kind, control, err := readDescription([]byte(text)); err != nil || control != "/ctl/IPConn" || !strings.HasSuffix(kind, ":2") {
		t.Errorf("found %q at %q: %v", kind, control, err)
	}
	for what, bad := range map[string]string{
		"no service": "<root></root>", "no XML": "hello", "too deep": strings.Repeat("<a>", 100), "a strange service": service("urn:x\r\nEvil: yes", "/"),
	} {
		if kind, _, err := readDescription([]byte(bad)); err == nil {
			t.Errorf("%s: found %q", what, kind)
		}
	}
}

func TestRefusalsOfUPnP(t *testing.T) {
	_, err := readSOAP([]byte("<e><Fault><detail><UPnPError><errorCode>718</errorCode></UPnPError></detail></Fault></e>"))
	if code, ok := errors.AsType[soapError](err); !ok || code != conflict {
		t.Errorf("the refusal is %v", err)
	}
	if _, err := readAnswer(strings.NewReader("HTTP/1.1 302 Found\r\nLocation: http://192.168.7.3/\r\n\r\n")); err == nil {
		t.Error("a redirect is followed")
	}
	if body, err := readAnswer(strings.NewReader("HTTP/1.1 200 OK\r\n\r\n" + strings.Repeat("x", 10*maxAnswer))); err != nil || len(body) > maxAnswer {
		t.Errorf("%d bytes are read: %v", len(body), err)
	}
}

// Whatever a router says, it is refused or understood, and leads nowhere else.
func FuzzAnswers(f *testing.F) {
	f.Add(answerPCP(pcpQuestion(here, port, mapping{}, 1), 0, "45.0.0.2:9999"))
	f.Add(pmpQuestion(port, port, 1))
	f.Add([]byte("HTTP/1.1 200 OK\r\nLOCATION: http://192.168.7.1/\r\n\r\n"))
	f.Add([]byte("<service><serviceType>urn:schemas-upnp-org:service:WANIPConnection:1</serviceType><controlURL>/x</controlURL></service>"))
	f.Add([]byte("<errorCode>718</errorCode>"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := readPCP(b, port, [12]byte{}); err == nil && m.lifetime > 2*longest {
			t.Errorf("the lease lasts %v", m.lifetime)
		}
		_, _ = readPMPAddress(b)
		_, _, _ = readPMPMapping(b, port)
		_, _ = readSOAP(b)
		_, _ = readAnswer(bytes.NewReader(b))
		if u, err := readLocation(here, b); err == nil && u.Hostname() != here.gateway.String() {
			t.Errorf("%q leads to %v", b, u)
		}
		if _, control, err := readDescription(b); err == nil {
			if u, err := here.atGateway(nil, control); err == nil && u.Hostname() != here.gateway.String() {
				t.Errorf("%q leads to %v", b, u)
			}
		}
	})
}
