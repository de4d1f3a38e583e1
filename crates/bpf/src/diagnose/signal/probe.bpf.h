/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/* The signals that stop a process of the subject, and their senders: they are rare, so this is attached all the time. */

SEC("tp_btf/signal_generate")
int BPF_PROG(on_stop_signal, int sig, void *info, struct task_struct *task)
{
	struct task_struct *sender, *leader;
	struct stop_signal_rec *r;

	/* SIGSTOP, and those of terminals: SIGTSTP, SIGTTIN, SIGTTOU. */
	if (sig < SIGSTOP || sig > SIGTTOU || !subject_scope(task->tgid))
		return 0;
	sender = current_task();
	leader = READ(untrusted_task(sender), group_leader);
	r = RESERVE(stop_signal_rec);
	if (!r)
		return 0;
	r->head.kind = REC_STOP_SIGNAL;
	r->head.tid = task->pid;
	r->head.at = bpf_ktime_get_ns();
	r->tgid = task->tgid;
	r->signal = sig;
	r->sender_tgid = bpf_get_current_pid_tgid() >> 32;
	r->pad = 0;
	bpf_probe_read_kernel(r->sender_comm, sizeof(r->sender_comm), leader->comm);
	SUBMIT(r);
	return 0;
}
