// Package discover lets machines of one network find the servers of clusters
// there, by multicast DNS (RFC 6762) and its way to name services (RFC 6763).
//
// A server announces where it is and the fingerprint of its cluster's authority
// ([Announce]); whoever looks for servers asks once and hears who answers
// ([Search]). Nothing that is heard is to be believed: anybody on the network
// can answer anything. Who searches must have the server prove itself before it
// is told anything. The package knows neither tokens nor certificates.
package discover
