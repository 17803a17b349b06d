package portmap

import (
	"bufio"
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// UPnP IGD: a search by UDP finds the address of the router's description (XML by HTTP). The description says where
// mappings are made, by SOAP.
const (
	ssdpPort = 1900
	// maxAnswer bounds what is read of any answer, and maxDepth how deeply its XML may be nested.
	maxAnswer = 64 << 10
	maxDepth  = 32
	// permanentOnly is the error of routers that know no leases.
	permanentOnly = 725
	// conflict is the error for a port that another machine has.
	conflict = 718
	// portTries is how many public ports are tried.
	portTries   = 4
	description = "cloudless"
)

var ssdpGroup = netip.MustParseAddr("239.255.255.250")

// search is the question of SSDP. Routers of version 2 answer it, too.
const search = "M-SEARCH * HTTP/1.1\r\nHOST: 239.255.255.250:1900\r\nMAN: \"ssdp:discover\"\r\nMX: 1\r\n" +
	"ST: urn:schemas-upnp-org:device:InternetGatewayDevice:1\r\n\r\n"

// connectionServices are the services that map ports.
var connectionServices = []string{
	"urn:schemas-upnp-org:service:WANIPConnection:1", "urn:schemas-upnp-org:service:WANIPConnection:2",
	"urn:schemas-upnp-org:service:WANPPPConnection:1",
}

// atGateway parses a URL and refuses it unless it leads to the router itself.
func (r router) atGateway(base *url.URL, text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("the router names a strange address: %w", err)
	}
	if base != nil {
		u = base.ResolveReference(u)
	}
	if host, err := netip.ParseAddr(u.Hostname()); err != nil || host != r.gateway || u.Scheme != "http" || u.User != nil {
		return nil, fmt.Errorf("the router leads to %q, which is not the router itself", u.Redacted())
	}
	return u, nil
}

// discover finds the URL of the router's description.
func discover(ctx context.Context, r router) (*url.URL, error) {
	conn, err := (&net.ListenConfig{}).ListenPacket(ctx, "udp4", netip.AddrPortFrom(r.local, 0).String())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	for _, to := range []netip.Addr{r.gateway, ssdpGroup} { // some routers hear only one of them
		_, _ = conn.WriteTo([]byte(search), net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, ssdpPort))) // the other may do
	}
	for buffer := make([]byte, 2048); ; {
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			return nil, errors.New("the router does not answer")
		}
		if from.(*net.UDPAddr).AddrPort().Addr().Unmap() != r.gateway {
			continue // another device of the network
		}
		if u, err := readLocation(r, buffer[:n]); err == nil {
			return u, nil
		}
	}
}

// readLocation reads an answer to the search.
func readLocation(r router, answer []byte) (*url.URL, error) {
	in := textproto.NewReader(bufio.NewReader(bytes.NewReader(answer)))
	status, err := in.ReadLine()
	if err != nil || !strings.HasPrefix(status, "HTTP/1.1 200") {
		return nil, errForeign
	}
	header, err := in.ReadMIMEHeader()
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, errForeign
	}
	return r.atGateway(nil, header.Get("Location"))
}

// service is where mappings are made.
type service struct {
	kind    string
	control *url.URL
}

// readDescription finds the service that maps ports in the router's description, and its control URL.
func readDescription(description []byte) (kind, control string, err error) {
	var current struct{ kind, control string }
	err = walk(description, func(path []string, text string) {
		if slices.Contains(path, "service") {
			switch path[len(path)-1] {
			case "serviceType":
				current.kind = text
			case "controlURL":
				current.control = text
			}
		}
		if current.kind == "" || current.control == "" {
			return
		}
		if kind == "" && slices.Contains(connectionServices, current.kind) {
			kind, control = current.kind, current.control
		}
		current.kind, current.control = "", ""
	})
	if err == nil && kind == "" {
		err = errors.New("the router's UPnP maps no ports")
	}
	return kind, control, err
}

// walk calls f for every text in an XML document, with the names of the elements around it.
func walk(document []byte, f func(path []string, text string)) error {
	var path []string
	for in := xml.NewDecoder(bytes.NewReader(document)); ; {
		token, err := in.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the router's XML: %w", err)
		}
		switch t := token.(type) {
		case xml.StartElement:
			if path = append(path, t.Name.Local); len(path) > maxDepth {
				return errors.New("the router's XML is nested too deeply")
			}
		case xml.EndElement:
			path = path[:len(path)-1]
		case xml.CharData:
			if text := strings.TrimSpace(string(t)); text != "" && len(path) > 0 {
				f(path, text)
			}
		}
	}
}

// soapError is a refusal of the router.
type soapError int

func (e soapError) Error() string { return fmt.Sprintf("the router refuses with code %d", int(e)) }

// readSOAP returns the results of a call by name.
func readSOAP(answer []byte) (map[string]string, error) {
	results := map[string]string{}
	if err := walk(answer, func(path []string, text string) { results[path[len(path)-1]] = text }); err != nil {
		return nil, err
	}
	if text, refused := results["errorCode"]; refused {
		code, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return nil, errors.New("the router refuses")
		}
		return nil, soapError(code)
	}
	return results, nil
}

// argument is one of a call.
type argument struct{ name, value string }

// call calls an action of the service.
func (s service) call(ctx context.Context, r router, action string, arguments ...argument) (map[string]string, error) {
	var body strings.Builder
	body.WriteString(`<?xml version="1.0"?><s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/" ` +
		`s:encodingStyle="http://schemas.xmlsoap.org/soap/encoding/"><s:Body>`)
	body.WriteString("<u:" + action + ` xmlns:u="` + escape(s.kind) + `">`)
	for _, a := range arguments {
		body.WriteString("<" + a.name + ">" + escape(a.value) + "</" + a.name + ">")
	}
	body.WriteString("</u:" + action + "></s:Body></s:Envelope>")
	header := "Content-Type: text/xml; charset=\"utf-8\"\r\nSOAPAction: \"" + s.kind + "#" + action + "\"\r\n"
	answer, err := exchange(ctx, r, s.control, "POST", header, body.String())
	if err != nil {
		return nil, err
	}
	return readSOAP(answer)
}

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a builder takes everything
	return b.String()
}

// exchange sends an HTTP request to the router and returns the body of the answer. This is all of HTTP that UPnP needs:
// package net/http would double the size of the program.
func exchange(ctx context.Context, r router, at *url.URL, method, header, body string) ([]byte, error) {
	port, err := strconv.ParseUint("0"+at.Port(), 10, 16)
	if err != nil {
		return nil, err
	}
	if port == 0 {
		port = 80
	}
	to := netip.AddrPortFrom(r.gateway, uint16(port))
	dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(r.local, 0))}
	conn, err := dialer.DialContext(ctx, "tcp4", to.String())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if _, err := fmt.Fprintf(conn, "%s %s HTTP/1.0\r\nHost: %s\r\nConnection: close\r\nContent-Length: %d\r\n%s\r\n%s",
		method, at.RequestURI(), to, len(body), header, body); err != nil {
		return nil, err
	}
	return readAnswer(conn)
}

// readAnswer returns the body of an HTTP answer. An error of SOAP has a body, too.
func readAnswer(from io.Reader) ([]byte, error) {
	limited := bufio.NewReader(io.LimitReader(from, maxAnswer))
	in := textproto.NewReader(limited)
	status, err := in.ReadLine()
	if err != nil {
		return nil, err
	}
	if words := strings.Fields(status); len(words) < 2 || !strings.HasPrefix(words[0], "HTTP/1.") || words[1] != "200" && words[1] != "500" {
		return nil, fmt.Errorf("the router answers %q", status)
	}
	if _, err := in.ReadMIMEHeader(); err != nil {
		return nil, err
	}
	return io.ReadAll(limited)
}

func addUPnP(ctx context.Context, r router, port uint16, old mapping) (made mapping, err error) {
	s := old.service
	if s.control == nil {
		if s, err = findService(ctx, r); err != nil {
			return made, err
		}
	}
	results, err := s.call(ctx, r, "GetExternalIPAddress")
	if err != nil {
		return made, err
	}
	address, err := netip.ParseAddr(results["NewExternalIPAddress"])
	if err != nil {
		return made, errors.New("the router has no public address")
	}
	external := port
	if old.external.IsValid() {
		external = old.external.Port()
	}
	seconds := uint32(wanted / time.Second)
	for range portTries {
		_, err = s.call(ctx, r, "AddPortMapping",
			argument{"NewRemoteHost", ""}, argument{"NewExternalPort", fmt.Sprint(external)}, argument{"NewProtocol", "UDP"},
			argument{"NewInternalPort", fmt.Sprint(port)}, argument{"NewInternalClient", r.local.String()},
			argument{"NewEnabled", "1"}, argument{"NewPortMappingDescription", description}, argument{"NewLeaseDuration", fmt.Sprint(seconds)})
		switch code, _ := errors.AsType[soapError](err); {
		case err == nil:
			return mapping{external: netip.AddrPortFrom(address, external), lifetime: lifetimeOf(seconds), service: s}, nil
		case code == permanentOnly && seconds != 0:
			seconds = 0
		case code == conflict:
			external = external%50000 + 1 + 10000 // any other one
		default:
			return made, err
		}
	}
	return made, err
}

func removeUPnP(ctx context.Context, r router, _ uint16, old mapping) error {
	_, err := old.service.call(ctx, r, "DeletePortMapping",
		argument{"NewRemoteHost", ""}, argument{"NewExternalPort", fmt.Sprint(old.external.Port())}, argument{"NewProtocol", "UDP"})
	return err
}

// findService finds where the router maps ports.
func findService(ctx context.Context, r router) (s service, err error) {
	location, err := discover(ctx, r)
	if err != nil {
		return s, err
	}
	text, err := exchange(ctx, r, location, "GET", "", "")
	if err != nil {
		return s, err
	}
	kind, control, err := readDescription(text)
	if err != nil {
		return s, err
	}
	at, err := r.atGateway(location, control)
	return service{kind, at}, err
}
