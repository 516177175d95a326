package importer

import (
	"strings"

	"sluice.dev/sluice/internal/model"
)

// vocabulary is the words that a block of keepalived.conf may have: "" for those that are taken
// over, for others why they are left out.
type vocabulary map[string]string

// with adds the words of a text, which are left out for the same reason, or taken over.
func (v vocabulary) with(why, words string) vocabulary {
	for word := range strings.FieldsSeq(words) {
		v[word] = why
	}
	return v
}

const (
	unknownWord = "keepalived.conf(5) has no such word here"
	// ofKeepalived is the reason for words that are not about what is served.
	ofKeepalived = "it is about keepalived itself"
	// losesNothing begins the reasons for words without which nothing is lost.
	losesNothing = "it has no effect here: "
	ofVRRP       = "it is about VRRP, with which keepalived may go on; 'sluice balance keepalived' writes a configuration for it"
	noScripts    = "no scripts are run when servers come and go; 'sluice farms', the log and the metrics tell"
	noMails      = "no mails are sent; the log and the metrics tell"
)

// topWords are those that are in no block, beside those for which the reader has functions.
var topWords = vocabulary{
	"SSL":          "checks of type https look at no certificate and show none, so that servers that want one are down",
	"bfd_instance": "there is no BFD of servers here, so that none is down because of it",
	"track_file":   "no files are tracked, so that neither weights nor priorities follow them",
}.
	with(inNamespace, "net_namespace net_namespace_ipvs").
	with("addresses, routes and rules are not made; keepalived may go on with it", "static_ipaddress static_routes static_rules").
	with(ofVRRP, `vrrp_instance vrrp_sync_group vrrp_script vrrp_track_process vrrp_track_file track_group garp_group
		linkbeat_interfaces linkbeat_use_polling interface_up_down_delays`).
	with(ofKeepalived, "namespace_with_ipsets use_pid_dir instance child_wait_time")

const inNamespace = "start 'sluice balance' in that network namespace (ip netns exec), or it serves in that where it is started"

// globalWords are those of global_defs. Those that tell ofKeepalived are its name, processes, files
// and VRRP.
var globalWords = vocabulary{
	"lvs_timeouts":           "connections time out as connection tracking has it: net.netfilter.nf_conntrack_tcp_timeout_established, …_fin_wait, nf_conntrack_udp_timeout; with --mode ipvs as 'ipvsadm --set' has it",
	"lvs_sync_daemon":        "connections are not synchronised by IPVS, so that they end with a failover; 'sluice balance keepalived' has conntrackd do it",
	"lvs_flush":              "the virtual servers of others stay",
	"script_user":            commandUser,
	"enable_script_security": "a command of a check is run whoever may write to it",
	"enable_snmp_checker":    "there is no SNMP; the metrics tell",
}.
	with("what is programmed stays when the balancer ends; 'sluice cleanup' removes it", "lvs_flush_on_stop lvs_flush_onstop").
	with("checks run with the priority of sluice; set it in the unit of systemd", `checker_priority checker_no_swap checker_rt_priority
		checker_cpu_affinity checker_rlimit_rttime checker_rlimit_rtime`).
	with(inNamespace, "net_namespace net_namespace_ipvs").
	with(noScripts, `rs_init_notifies lvs_notify_fifo lvs_notify_fifo_script notify_fifo notify_fifo_script
		startup_script startup_script_timeout shutdown_script shutdown_script_timeout`).
	with(noMails, `notification_email notification_email_from smtp_server smtp_helo_name smtp_connect_timeout smtp_alert
		smtp_alert_checker no_checker_emails`).
	with(ofKeepalived, `router_id lvs_id smtp_alert_vrrp no_email_faults checker_log_all_failures default_interface dynamic_interfaces
		process_names process_name vrrp_process_name checker_process_name lvs_process_name bfd_process_name
		use_symlink_paths set_supplementary_groups instance use_pid_dir namespace_with_ipsets child_wait_time linkbeat_use_polling umask
		max_auto_priority min_auto_priority_delay random_seed include_check config_save_dir tmp_config_directory data_use_instance
		reload_check_config reload_time_file reload_repeat reload_file reload_date_specific
		json_version iproute_usr_dir iproute_etc_dir state_dump_file stats_dump_file state_file_location stats_file_location json_file_location json_dump_file
		disable_local_igmp v3_checksum_as_v2 nftables nftables_priority nftables_ifindex nftables_counters
		nftables_ipvs nftables_ipvs_priority nftables_ipvs_start_fwmark
		vrrp_mcast_group4 vrrp_mcast_group6 vrrp_garp_master_delay vrrp_garp_master_repeat vrrp_garp_master_refresh
		vrrp_garp_master_refresh_repeat vrrp_garp_lower_prio_delay vrrp_garp_lower_prio_repeat vrrp_down_timer_adverts
		vrrp_garp_interval vrrp_gna_interval vrrp_min_garp vrrp_garp_extra_if vrrp_vmac_garp_intvl vrrp_lower_prio_no_advert
		vrrp_higher_prio_send_advert vrrp_version vrrp_iptables vrrp_ipsets vrrp_check_unicast_src vrrp_skip_check_adv_addr
		vrrp_strict vrrp_priority vrrp_no_swap vrrp_rt_priority vrrp_cpu_affinity vrrp_rlimit_rttime vrrp_rlimit_rtime
		vrrp_notify_fifo vrrp_notify_fifo_script vrrp_notify_priority_changes fifo_write_vrrp_states_on_reload
		bfd_priority bfd_no_swap bfd_rt_priority bfd_cpu_affinity bfd_rlimit_rttime bfd_rlimit_rtime
		snmp_socket enable_traps enable_snmp_vrrp enable_snmp_keepalived enable_snmp_rfc enable_snmp_rfcv2 enable_snmp_rfcv3
		snmp_vs_stats_update_interval snmp_rs_stats_update_interval enable_dbus dbus_service_name dbus_no_interface_name
		vrrp_netlink_cmd_rcv_bufs vrrp_netlink_cmd_rcv_bufs_force vrrp_netlink_monitor_rcv_bufs vrrp_netlink_monitor_rcv_bufs_force
		lvs_netlink_cmd_rcv_bufs lvs_netlink_cmd_rcv_bufs_force lvs_netlink_monitor_rcv_bufs lvs_netlink_monitor_rcv_bufs_force
		process_monitor_rcv_bufs process_monitor_rcv_bufs_force vrrp_rx_bufs_policy vrrp_rx_bufs_multiplier vrrp_startup_delay
		vrrp_delay_after_boot log_unknown_vrids vrrp_owner_ignore_adverts vmac_prefix vmac_addr_prefix`)

const commandUser = "commands of checks run as the user that runs sluice"

// virtualServerWords are those of a virtual_server.
var virtualServerWords = vocabulary{
	"ops":                  onePacket,
	"hashed":               losesNothing + "IPVS does not look at it",
	"persistence_engine":   byContent,
	"sorry_server_inhibit": "a sorry server is not checked, so that it never fails",
	"ip_family":            losesNothing + "a farm is of the family of its address",
	"ha_suspend":           "servers are checked whether or not this machine has the address",
}.
	with("", checkTimes+` lb_algo lvs_sched lb_kind lvs_method protocol snmp_name weight virtualhost
		flag-1 flag-2 flag-3 sh-port sh-fallback mh-port mh-fallback persistence_timeout persistence_granularity
		real_server sorry_server sorry_server_lvs_method`).
	with("the sorry server serves once all others are down, whatever their weights", "quorum hysteresis").
	with(noScripts, "omega quorum_up quorum_down")

// checkTimes are the words about the times of checks.
const checkTimes = "delay_loop connect_timeout retry delay_before_retry"

const (
	onePacket = "packets of a flow go to one server; a scheduling of single datagrams is not available"
	byContent = "clients are remembered by address, not by what is in their packets"
)

// realServerWords are those of a real_server.
var realServerWords = vocabulary{"snmp_name": losesNothing + "a backend's name is made of its address"}.
	with("", checkTimes+" weight lvs_method uthreshold lthreshold virtualhost").
	with(noScripts, "notify_up notify_down")

// anyServerWords are those of both.
var anyServerWords = vocabulary{
	"alpha":              alphaWord,
	"inhibit_on_failure": "the connections of a server that fails end; keepalived would let them go on",
	"warmup":             warmupWord,
	"smtp_alert":         noMails,
}

const (
	alphaWord  = "a server counts as up until its checks fail, also when it is new"
	warmupWord = losesNothing + "first checks are spread over the interval anyway"
)

// checkWords are the checks that a real_server may have.
var checkWords = vocabulary{
	"DNS_CHECK":  "there is no check that asks a name server, so that none is down because of it; give the farm a health-check of type command, or tcp with port 53",
	"BFD_CHECK":  "there is no BFD of servers here, so that none is down because of it",
	"FILE_CHECK": "no files are tracked, so that no server is down because of one; give the farm a health-check of type command",
}.with("", "HTTP_GET SSL_GET TCP_CHECK UDP_CHECK PING_CHECK MISC_CHECK SMTP_CHECK")

// anyCheckWords are those of every check.
var anyCheckWords = vocabulary{
	"nb_get_retry":     "keepalived reads it in HTTP_GET and SSL_GET alone; elsewhere retry says it",
	"connect_ip":       "a check goes to the server's own address",
	"bindto":           "a check comes from the address that the route has",
	"bind_if":          "a check goes by the route",
	"bind_port":        "a check comes from any port",
	"fwmark":           "a check has no mark",
	"warmup":           warmupWord,
	"alpha":            alphaWord,
	"log_all_failures": losesNothing + "changes of a server's state are logged, not each check",
}.with("", checkTimes+" connect_port")

var (
	httpWords = vocabulary{
		"http_protocol": "checks use HTTP/1.1",
		"fast_recovery": losesNothing + "a farm has one URL",
		"enable_sni":    losesNothing + "the name in host is always sent",
		"sni_name":      "the name in host is sent",
		"tls_compliant": losesNothing + "a connection of a check just ends",
	}.with("", "url virtualhost nb_get_retry")
	urlWords = vocabulary{
		"digest":        "contents are not compared by digest, so that any page with the status will do; give body a part of the page that must be there",
		"tls_compliant": losesNothing + "a connection of a check just ends",
	}.
		with("", "path status_code virtualhost").
		with("there are no regular expressions, so that any page with the status will do; give body a part of the page that must be there",
			"regex regex_no_match regex_options regex_stack regex_min_offset regex_max_offset")
	udpWords = vocabulary{}.with("", "payload require_reply").
			with("an answer of any length will do", "min_reply_length max_reply_length")
	miscWords = vocabulary{
		"misc_dynamic": "weights stay: a command tells good or bad, here by any status but 1, as with keepalived",
		"user":         commandUser,
	}.with("", "misc_path misc_timeout")
	smtpWords     = vocabulary{"host": "", "helo_name": "what the mail server says is not read"}
	smtpHostWords = vocabulary{"connect_ip": anyCheckWords["connect_ip"], "connect_port": "", "bindto": anyCheckWords["bindto"], "bind_port": anyCheckWords["bind_port"]}
)

// arguments is how many words keepalived reads after a word that is taken over; one if it is not
// here, -1 for all.
var arguments = map[string]int{
	"lb_kind": -1, "lvs_method": -1, "sorry_server_lvs_method": -1, "status_code": -1, "misc_path": -1, "payload": -1, "require_reply": -1,
	"real_server": 2, "sorry_server": 2,
	"flag-1": 0, "flag-2": 0, "flag-3": 0, "sh-port": 0, "sh-fallback": 0, "mh-port": 0, "mh-fallback": 0,
	"HTTP_GET": 0, "SSL_GET": 0, "TCP_CHECK": 0, "UDP_CHECK": 0, "PING_CHECK": 0, "MISC_CHECK": 0, "SMTP_CHECK": 0, "url": 0, "host": 0,
}

// unheeded says of each statement of a block why it is left out, if it is. known are the words that
// the block may have.
func unheeded(n *notes, block []*statement, known ...vocabulary) {
	for _, s := range block {
		why, found, ofService := "", false, false
		for _, v := range known {
			if _, has := v["real_server"]; has {
				ofService = true
			}
			if reason, ok := v[s.word(0)]; ok {
				why, found = reason, true
			}
		}
		switch {
		case !found && s.braced && ofService: // perhaps a server
			n.lost(s.line, s.text(), "left out: %s", unknownWord)
		case !found:
			n.add(s.line, s.text(), "left out: %s", unknownWord)
		case why == "":
			surplus(n, s)
		case why == ofKeepalived || s.asUsual():
		case strings.HasPrefix(why, losesNothing):
			n.note(Nothing, s.line, s.text(), "left out: %s", why)
		default:
			n.add(s.line, s.text(), "left out: %s", why)
		}
	}
}

// surplus names the words that follow those that keepalived reads, such as those of a line that
// should have been two.
func surplus(n *notes, s *statement) {
	most, special := arguments[s.word(0)]
	if !special {
		most = 1
	}
	if most >= 0 && len(s.words) > 1+most {
		n.add(s.line, s.text(), "%s is left out, as with keepalived, which reads %s after %s", strings.Join(s.words[1+most:], " "), model.Count(most, "word"), s.word(0))
	}
}

// asUsual reports whether a statement says what is so without it, so that nothing is lost.
func (s *statement) asUsual() bool {
	switch s.word(1) {
	case "off", "no", "false":
		return len(s.words) == 2
	}
	switch s.text() {
	case "quorum 1", "hysteresis 0", "http_protocol 1.1", "min_reply_length 0":
		return true
	}
	return false
}
