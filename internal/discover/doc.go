// Package discover lets machines of one network find the servers of clusters there, by
// multicast DNS (RFC 6762) and DNS service discovery (RFC 6763).
//
// A server announces its address and the fingerprint of its cluster's authority
// ([Announce]); a client asks once and collects the answers ([Search]). Answers are not
// trustworthy: any machine on the network can send them. The client must authenticate a
// server before it sends it anything. The package knows neither tokens nor certificates.
package discover
