package relay

import (
	"net"
	"net/netip"

	"github.com/pion/stun/v3"
)

// AnswerSTUN answers STUN requests with the address that each one came from. It returns when conn is closed. An
// answer is hardly longer than a question, so that it cannot be used to flood others.
func AnswerSTUN(conn net.PacketConn) error {
	buffer := make([]byte, 512)
	for {
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			return err
		}
		udp, ok := from.(*net.UDPAddr)
		if !ok {
			continue
		}
		if answer := STUNAnswer(buffer[:n], udp.AddrPort()); answer != nil {
			_, _ = conn.WriteTo(answer, from) // a client that gets no answer asks again
		}
	}
}

// STUNAnswer is the answer to a question that came from an address; nil if the datagram is no question.
func STUNAnswer(datagram []byte, from netip.AddrPort) []byte {
	if !stun.IsMessage(datagram) {
		return nil
	}
	question := &stun.Message{Raw: datagram}
	if question.Decode() != nil || question.Type != stun.BindingRequest {
		return nil
	}
	answer, err := stun.Build(stun.NewTransactionIDSetter(question.TransactionID), stun.BindingSuccess,
		&stun.XORMappedAddress{IP: from.Addr().Unmap().AsSlice(), Port: int(from.Port())})
	if err != nil {
		return nil
	}
	return answer.Raw
}
